// A treap: random priorities keep it balanced, so a lookup among a million keys takes a few dozen steps.
#include "base/tree.h"

static uint32_t next_priority(void)
{
	static uint32_t state = 2463534242u; // xorshift; the caller holds the lock
	state ^= state << 13;
	state ^= state >> 17;
	state ^= state << 5;
	return state;
}

// Splits into keys < key and keys >= key.
static void split(struct tree_node *node, uint64_t key, struct tree_node **low, struct tree_node **high)
{
	while (node) {
		if (node->key < key) {
			*low = node;
			low = &node->right;
			node = node->right;
		} else {
			*high = node;
			high = &node->left;
			node = node->left;
		}
	}
	*low = *high = NULL;
}

static struct tree_node *merge(struct tree_node *low, struct tree_node *high)
{
	struct tree_node *root = NULL, **slot = &root;
	while (low && high) {
		if (low->priority > high->priority) {
			*slot = low;
			slot = &low->right;
			low = low->right;
		} else {
			*slot = high;
			slot = &high->left;
			high = high->left;
		}
	}
	*slot = low ? low : high;
	return root;
}

void tree_insert(struct tree *tree, struct tree_node *node, uint64_t key)
{
	node->key = key;
	node->priority = next_priority();
	struct tree_node **slot = &tree->root;
	while (*slot && (*slot)->priority >= node->priority)
		slot = key < (*slot)->key ? &(*slot)->left : &(*slot)->right;
	split(*slot, key, &node->left, &node->right);
	*slot = node;
}

void tree_remove(struct tree *tree, struct tree_node *node)
{
	struct tree_node **slot = &tree->root;
	while (*slot && *slot != node)
		slot = node->key < (*slot)->key ? &(*slot)->left : &(*slot)->right;
	if (*slot)
		*slot = merge(node->left, node->right);
}

struct tree_node *tree_find(const struct tree *tree, uint64_t key)
{
	struct tree_node *node = tree_floor(tree, key);
	return node && node->key == key ? node : NULL;
}

struct tree_node *tree_floor(const struct tree *tree, uint64_t key)
{
	struct tree_node *best = NULL;
	for (struct tree_node *node = tree->root; node;) {
		if (node->key <= key) {
			best = node;
			node = node->right;
		} else {
			node = node->left;
		}
	}
	return best;
}

struct tree_node *tree_ceiling(const struct tree *tree, uint64_t key)
{
	struct tree_node *best = NULL;
	for (struct tree_node *node = tree->root; node;) {
		if (node->key >= key) {
			best = node;
			node = node->left;
		} else {
			node = node->right;
		}
	}
	return best;
}
