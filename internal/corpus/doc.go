// Package corpus loads text for a byte-level language model, splits it and deals out positions of it.
//
// The main types are [Corpus], the text of a file or folder in three splits, and [Split], one of
// them. In order: [DefaultRoot] where the user named nothing, [Load], then for training a [Sampler]
// (a batch for each step, by seed and step alone) and for evaluation [Split.Positions] with
// [Split.Fill].
//
// # What is read
//
// Of a folder, all regular files in the byte order of their slash-separated paths, the same on every
// system. Left out, and counted in [Skipped]: files that hold a byte 0 (binary, UTF-16), symbolic
// links (they may lead back into the folder), copies of a file that came before and empty files.
// Hidden files and folders (a name that begins with a dot) are not looked at. With [GoSources] only
// .go files count, and folders named testdata or vendor do not.
//
// # Splits
//
// By file: every 20th file in order goes to the held-out split, every 20th, halfway between those, to
// the fit split, the others to the training split. With fewer than 20 files it is one of each n, so
// at least 3 files are needed. No file is in two splits, and copies were left out, but near-copies (a
// file generated for each of several systems) may be in two.
//
// A single file is cut into contiguous parts, 90 %, 5 % and 5 %, in this order, at the line ends
// nearest to these places.
//
// # Layout
//
// A split is one run of bytes in which a byte 0 stands before each file; text holds no other byte 0.
// A position is an index of a text byte in it. The context of a position never reaches beyond its
// file's start: it is padded with byte 0.
//
// Errors name the file and, for too little text, the bytes needed. Corpus, Split and Sampler do not
// change after they are made; several goroutines may use them.
package corpus
