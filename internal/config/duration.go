package config

import (
	"encoding/json"
	"fmt"
	"time"
)

// Duration is written as Go writes it: 30s, 2m, 168h.
type Duration time.Duration

// UnmarshalJSON reads "30s"; a bare number is refused, since nobody can tell its unit.
func (d *Duration) UnmarshalJSON(raw []byte) error {
	var s string
	if err := json.Unmarshal(raw, &s); err != nil {
		return fmt.Errorf("duration %s: write it with a unit, such as \"30s\"", raw)
	}
	v, err := time.ParseDuration(s)
	if err != nil {
		return fmt.Errorf("duration %q: write it as Go does, such as 30s, 2m or 168h", s)
	}
	*d = Duration(v)
	return nil
}

// MarshalJSON is the inverse.
func (d Duration) MarshalJSON() ([]byte, error) {
	return json.Marshal(time.Duration(d).String())
}
