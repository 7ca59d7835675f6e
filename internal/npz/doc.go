// Package npz reads and writes NumPy's .npz and .npy files, and the keys under which operands and
// attributes of nodes stand in them.
//
// An Array is a name, a NumPy type and a shape over bytes as they are in the file. ReadFile and Read give
// the arrays of an archive in its order, WriteFile and Write make one; ReadNPY and WriteNPY handle a single
// array. ParseKey splits a key such as "b.0.bf16" into operand, expert and format; Split turns the arrays
// of an input file into operands and attributes.
//
// What is read: zip members stored or deflated, NumPy format 1.0 to 3.0, C order, little endian, the types
// of the table in array.go. What is written: stored members, format 1.0, the same bytes for the same
// arrays. Anything else is refused, Fortran order and big endian among it.
//
// Files are not trusted. Every size is checked against what the file really holds before memory is taken
// for it, and all arrays of a file together stay below Options.MaxBytes. Errors wrap ErrInvalid or
// ErrTooLarge and name the file and the member.
//
// Nothing here keeps state; arrays share no memory with each other.
package npz
