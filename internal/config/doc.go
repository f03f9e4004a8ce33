// Package config is what a compass process is told at its start: one YAML file, decoded strictly, with every default in
// one place and every error naming the field and what to write instead.
//
// Secrets are never in the file, in the environment or in arguments: the file names other files that hold them (mounted
// Secrets), which are read at start and, where they rotate, again. The operator writes the file from the CRDs; people who
// run compass by hand write it themselves. The package imports no system of ours.
package config
