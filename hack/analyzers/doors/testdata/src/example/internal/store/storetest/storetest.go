// Package storetest may do anything.
package storetest

const sqlProbe = `set role anybody`
