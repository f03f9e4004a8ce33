// Package sources walks the Go files of a checkout: without folders that begin with a dot, test data, what was built, and
// what npm brought.
//
// It imports the standard library.
package sources
