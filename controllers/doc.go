// Package controllers registers every kind with a manager: its watches, its indexes, its ports. A new kind is a folder here
// and a line in Register.
//
// Kinds never import each other. They meet through status and watches, and what a kind must hear of another is written here.
package controllers
