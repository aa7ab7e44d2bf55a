package criu

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// entry is a protobuf message with numbers, as field and value.
func entry(numbers ...uint64) (message []byte) {
	for i := 0; i < len(numbers); i += 2 {
		message = binary.AppendUvarint(message, numbers[i]<<3)
		message = binary.AppendUvarint(message, numbers[i+1])
	}
	return message
}

func pagemap(messages ...[]byte) []byte {
	text := binary.LittleEndian.AppendUint32(nil, imageMagic)
	text = binary.LittleEndian.AppendUint32(text, pagemapMagic)
	for _, message := range messages {
		text = binary.LittleEndian.AppendUint32(text, uint32(len(message)))
		text = append(text, message...)
	}
	return text
}

func folderWith(t *testing.T, files map[string][]byte) (folder string) {
	t.Helper()
	folder = t.TempDir()
	for name, text := range files {
		require.NoError(t, os.WriteFile(filepath.Join(folder, name), text, 0o600))
	}
	return folder
}

const page, block = 4 << 10, 64 << 10

// Parts end where addresses are multiples of the block, wherever that is in the file.
func TestPagesAreCutByAddress(t *testing.T) {
	if os.Getpagesize() != page {
		t.Skip("pages have another size here")
	}
	more := append(entry(1, 0x70000, 2, 2, 4, present), // and fields that are not known
		9<<3|2, 3, 'x', 'y', 'z', 10<<3|5, 1, 2, 3, 4, 11<<3|1, 1, 2, 3, 4, 5, 6, 7, 8)
	folder := folderWith(t, map[string][]byte{
		"pagemap-7.img": pagemap(entry(1, 3),
			entry(1, 0x1f000, 2, 1, 4, present),          // the last page of a block
			entry(1, 0x20000, 2, 0, 4, present, 5, 2*16), // two blocks; the number of CRIU 4.2 goes before the earlier one
			entry(1, 0x40000, 2, 9, 4, 2),                // is not in the file (lazy)
			entry(1, 0x51000, 2, 1, 4, present),          // two ranges of one block
			entry(1, 0x5f000, 2, 1),                      // without flags, of an earlier CRIU
			more),
		"pages-3.img":         make([]byte, (1+2*16+1+1+2)*page),
		"pagemap-shmem-8.img": pagemap(entry(1, 4), entry(1, 0, 2, 1, 4, present)),
		"pages-4.img":         make([]byte, page),
		"pagemap-9.img":       pagemap(entry(1, 5)), // without private memory
	})
	all, err := FindPages(folder, block)
	require.NoError(t, err)
	require.Equal(t, []Pages{
		{"pages-3.img", []int64{page, block, block, 2 * page, 2 * page}},
		{"pages-4.img", []int64{page}},
	}, all)
}

// A pagemap that is not as expected leaves its file of pages whole, and so does each beginning of one.
func TestOtherPagemaps(t *testing.T) {
	good := pagemap(entry(1, 3), entry(1, 0x10000, 2, 2, 4, present))
	texts := map[string][]byte{
		"another magic":            append([]byte{1}, good[1:]...),
		"another second magic":     append(bytes.Clone(good[:4]), make([]byte, 20)...),
		"no number of the pages":   pagemap(entry(), entry(1, 0x10000, 2, 2, 4, present)),
		"a number that is too big": pagemap(entry(1, 1<<32), entry(1, 0x10000, 2, 2, 4, present)),
		"a long message":           append(bytes.Clone(good), 0xff, 0xff, 0xff, 0xff),
		"a long field":             pagemap(entry(1, 3), []byte{9<<3 | 2, 200}),
		"a field without an end":   pagemap(entry(1, 3), []byte{0x80}),
		"a group":                  pagemap(entry(1, 3), []byte{9<<3 | 3}),
		"pages of an earlier dump": pagemap(entry(1, 3), entry(1, 0x10000, 2, 2, 3, 1)),
		"too few pages":            pagemap(entry(1, 3), entry(1, 0x10000, 2, 1, 4, present)),
		"too many pages":           pagemap(entry(1, 3), entry(1, 0x10000, 2, 3, 4, present)),
		"very many pages":          pagemap(entry(1, 3), entry(1, 0x10000, 5, 1<<63, 2, 0, 4, present)),
		"an address at the end":    pagemap(entry(1, 3), entry(1, 1<<64-page, 2, 2, 4, present)),
	}
	for length := range len(good) {
		texts["the first "+string(rune('0'+length%10))+" of tens "+string(rune('0'+length/10))] = good[:length]
	}
	for what, text := range texts {
		t.Run(what, func(t *testing.T) {
			folder := folderWith(t, map[string][]byte{"pagemap-7.img": text, "pages-3.img": make([]byte, 2*os.Getpagesize())})
			all, err := FindPages(folder, block)
			require.NoError(t, err)
			require.Empty(t, all)
		})
	}
	folder := folderWith(t, map[string][]byte{"pagemap-7.img": good, "pages-3.img": make([]byte, 2*os.Getpagesize())})
	all, err := FindPages(folder, block)
	require.NoError(t, err)
	require.Len(t, all, 1)
}

func FuzzReadPagemap(f *testing.F) {
	f.Add(pagemap(entry(1, 3), entry(1, 0x10000, 2, 2, 4, present)), int64(2*page))
	f.Fuzz(func(t *testing.T, text []byte, size int64) {
		if _, ranges, err := readPagemap(text); err == nil && size >= 0 && size < 1<<40 {
			if lengths, err := cut(ranges, size, page, block); err == nil {
				for _, length := range lengths {
					require.True(t, length > 0 && length <= block)
					size -= length
				}
				require.Zero(t, size)
			}
		}
	})
}
