// Package safetensors reads and writes tensors in the safetensors format
// (https://github.com/huggingface/safetensors), and reads checkpoints sharded over several such files.
//
// The main types are [File], an open checkpoint, and [Tensor], a name with element type, shape and
// bytes. [Open] maps the file where the system can (elsewhere it reads it), so a large checkpoint is
// held once; [File.Tensor] gives views of the mapping until [File.Close]. [WriteFile] checks all
// tensors, then streams them into a temporary file that takes the name only when complete.
//
// A file is 8 bytes (little-endian length of the header), the header (a JSON object: name ->
// dtype, shape, data_offsets) and the tensors' bytes, little-endian, C order. Everything in it is
// checked on opening, so later calls cannot fail: a damaged or hostile file is a [*FormatError] that
// names file and tensor, and costs no more memory than a small multiple of its header.
//
// An open File may be used from several goroutines; Close must come after all of them. A mapped file
// must not be shortened in place while it is open: the system answers reads past the new end with a
// fault. WriteFile never does that; it replaces the file and leaves open mappings whole.
package safetensors
