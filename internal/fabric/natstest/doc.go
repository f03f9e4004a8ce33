// Package natstest runs a nats-server, in this process, from the very configuration that the operator renders for a pod: on
// a port of its own, with the pod's folder in a temporary one. It is imported by tests only.
package natstest
