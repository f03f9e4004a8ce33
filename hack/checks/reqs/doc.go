// Package reqs compares docs/REQUIREMENTS.md with the tests: which rows no test holds, which tests hold a row that does
// not exist, and which rows say of themselves what the tests do not: built and held by none, not yet built and held. A test
// holds a row by a comment in its _test.go file that says `Holds REQ-nnn`, or several of them in one sentence.
//
// It imports the standard library.
package reqs
