package main

import (
	"math"
	"math/bits"
)

// draw says which key a request has, by chance.
type draw interface {
	// of is the key for a number that is uniform among all of 64 bits.
	of(random uint64) int
}

// uniform gives each of so many keys the same chance.
type uniform int

func (n uniform) of(random uint64) int {
	at, _ := bits.Mul64(random, uint64(n))
	return int(at)
}

// skewed gives keys chances by Zipf's law with the exponent 0.99, which is how YCSB, the usual benchmark of stores, draws
// records: of a million, ten have a fifth of the requests and a thousand have half. Chances are inverted by the approximation
// of Gray and others, "Quickly Generating Billion-Record Synthetic Databases" (1994).
type skewed struct {
	n, alpha, zeta, eta float64
}

const skew = 0.99

func newSkewed(n int) *skewed {
	s := &skewed{n: float64(n), alpha: 1 / (1 - skew)}
	for i := 1; i <= n; i++ {
		s.zeta += math.Pow(float64(i), -skew)
	}
	s.eta = (1 - math.Pow(2/s.n, 1-skew)) / (1 - (1+math.Pow(0.5, skew))/s.zeta)
	return s
}

// rank is how many keys are more popular than the one that is drawn.
func (s *skewed) rank(random uint64) int {
	u := float64(random>>11) / (1 << 53)
	switch z := u * s.zeta; {
	case z < 1:
		return 0
	case z < 1+math.Pow(0.5, skew):
		return 1
	}
	return min(int(s.n*math.Pow(s.eta*u-s.eta+1, s.alpha)), int(s.n)-1)
}

// of scatters the popular keys over all: the factor is prime to every number of keys that a power of ten is.
func (s *skewed) of(random uint64) int { return s.rank(random) * 611953 % int(s.n) }
