// Package imports checks who may import whom, by asking the go command what every package of the module imports. The
// linter's depguard holds the same rules with lists of what is allowed; this check does not depend on the linter, and also
// sees what a package brings along through others.
//
// It owns the table of rules and promises to name the package, the import and the reason. It imports the standard library.
package imports
