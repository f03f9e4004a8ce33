// Package sizes holds the limits that no linter has: lines of a file (500, tests 800), and a doc.go for every package.
//
// It imports the standard library.
package sizes
