package store

type SystemLoop string

const LoopSweep SystemLoop = "sweep"
