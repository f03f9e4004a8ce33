// Package other is not the store.
package other

const sqlSet = `set role anybody`
