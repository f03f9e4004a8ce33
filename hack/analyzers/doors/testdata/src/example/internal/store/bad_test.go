package store

const sqlProbe = `set role anybody`
