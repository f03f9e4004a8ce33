// Package admin makes and keeps a Compass database and its roles for the operator, as an admin that may make roles and
// databases and is no superuser.
//
// It observes through the catalogue, writes only differences, and reads back what it wrote; run again, it writes nothing.
// Passwords reach the server only as SCRAM verifiers. What such an admin cannot repair (a role that somebody made a
// superuser, a membership that somebody else granted) it names together with the statement that would.
//
// It needs a direct connection and must not import package store.
package admin
