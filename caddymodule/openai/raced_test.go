//go:build race

package openai

// raced: under the race detector pools forget at random, and allocations say nothing.
const raced = true
