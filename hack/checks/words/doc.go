// Package words looks for what would tie the repository to the machine it was written on: paths of that machine and hosts
// of package registries. Which registry serves a machine is that machine's business.
//
// It imports the standard library.
package words
