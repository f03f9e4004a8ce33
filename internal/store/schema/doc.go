// Package schema brings a Compass database to the schema of this binary and says whether it is one.
//
// It owns the migration runner (design O5), the range of schema versions that this binary serves, and the audit by shape
// with its repair (design O4). It promises:
//
//   - each file runs whole in one transaction, which first takes one lock and only then reads the version, so
//     that two runners never apply a file twice and a frozen one that wakes does nothing;
//   - a failed file leaves the version before it and is named together with its statement;
//   - a history that was changed after it was applied is refused;
//   - it works on a direct connection only, as an admin that acts as the owner role.
//
// It takes the files as an fs.FS and must not import package store or package migrations.
package schema
