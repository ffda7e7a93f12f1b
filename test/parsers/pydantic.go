package parsers

import (
	"math"
	"math/big"
	"regexp"
	"strings"
)

var pydanticDigits = regexp.MustCompile(`^([+-]?)([0-9]+(?:_[0-9]+)*)(?:\.0+)?$`)

// PydanticInt reads a value for a whole number in pydantic's lax mode: whole floating numbers, booleans and text that holds
// one are numbers, too. set is false for null.
func PydanticInt(v any) (n *big.Int, set bool, err error) {
	switch v := v.(type) {
	case nil:
		return nil, false, nil
	case bool:
		if v {
			return big.NewInt(1), true, nil
		}
		return new(big.Int), true, nil
	case *big.Int:
		return v, true, nil
	case float64:
		if v == math.Trunc(v) && math.Abs(v) < 1<<63 {
			return big.NewInt(int64(v)), true, nil
		}
	case string:
		m := pydanticDigits.FindStringSubmatch(strings.TrimSpace(v))
		if m == nil {
			break
		}
		if n, ok := new(big.Int).SetString(m[1]+strings.ReplaceAll(m[2], "_", ""), 10); ok {
			return n, true, nil
		}
	}
	return nil, false, ErrRefused
}

// PydanticBool reads a value for a boolean in pydantic's lax mode: 0, 1 and some words are booleans, too. set is false for
// null.
func PydanticBool(v any) (b, set bool, err error) {
	switch v := v.(type) {
	case nil:
		return false, false, nil
	case bool:
		return v, true, nil
	case *big.Int:
		if v.IsInt64() && (v.Int64() == 0 || v.Int64() == 1) {
			return v.Int64() == 1, true, nil
		}
	case float64:
		if v == 0 || v == 1 {
			return v == 1, true, nil
		}
	case string:
		switch strings.ToLower(v) {
		case "1", "true", "t", "yes", "y", "on":
			return true, true, nil
		case "0", "false", "f", "no", "n", "off":
			return false, true, nil
		}
	}
	return false, false, ErrRefused
}

// PydanticText reads a value for a string, which nothing but a string is; lone surrogates pass. set is false for null.
func PydanticText(v any) (s string, set bool, err error) {
	switch v := v.(type) {
	case nil:
		return "", false, nil
	case string:
		return v, true, nil
	}
	return "", false, ErrRefused
}
