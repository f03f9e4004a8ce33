// Package figures holds alerts and dashboard of the chart to the figures that the code counts: one that was renamed would
// make an alert that never fires.
//
// It imports the standard library.
package figures
