// Package freeport finds ports of loopback for servers that tests start, where a server must be told its port beforehand or
// keep it when it starts again.
//
// It promises that no connection that goes out takes the port in between. It must not import anything but the standard
// library, and nothing but tests and what they are made of may import it.
package freeport
