// An ordered map from 64-bit keys to nodes embedded in their owners: the simulator's one lookup structure.
#ifndef CUDASIM_TREE_H
#define CUDASIM_TREE_H

#include <stddef.h>
#include <stdint.h>

struct tree_node {
	struct tree_node *left, *right;
	uint64_t key;
	uint32_t priority;
};

struct tree {
	struct tree_node *root;
};

// Keys are unique: inserting a key that is present is a bug in the caller.
void tree_insert(struct tree *tree, struct tree_node *node, uint64_t key);
void tree_remove(struct tree *tree, struct tree_node *node);
struct tree_node *tree_find(const struct tree *tree, uint64_t key);
// The node with the largest key <= key, the smallest key >= key; NULL if none.
struct tree_node *tree_floor(const struct tree *tree, uint64_t key);
struct tree_node *tree_ceiling(const struct tree *tree, uint64_t key);

#endif
