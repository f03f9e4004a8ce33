// Package delivery measures the way from a commit to the Runner's handler beside three others: polling the same cursor, River
// with its defaults, and a bare JetStream loop that has neither truth nor isolation.
//
// It is a module of its own, so that what it compares with is no dependency of the product. What is measured is said where it
// is done; figures of one run are compared with each other and with nothing else.
package delivery
