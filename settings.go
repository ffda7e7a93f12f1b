package levelrail

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"
)

// Setting describes one field of a settings struct: its environment name, default and documentation.
type Setting struct {
	Name    string // APP_…, LEVELRAIL_… or the platform's own, such as HTTPS_PROXY
	Default string
	Doc     string
	Secret  bool // never shown
}

// Settings lists the fields of a settings struct (tags env, default, doc, secret) in order. It is the source of the
// reference pages and of `levelrail-server settings`.
func Settings(of any) []Setting {
	t := reflect.Indirect(reflect.ValueOf(of)).Type()
	var out []Setting
	for i := range t.NumField() {
		f := t.Field(i)
		if name := f.Tag.Get("env"); name != "" {
			out = append(out, Setting{Name: name, Default: f.Tag.Get("default"), Doc: f.Tag.Get("doc"), Secret: f.Tag.Get("secret") == "true"})
		}
	}
	return out
}

// LoadSettings fills a settings struct: the daemon's environment wins over the cluster's settings document, which wins
// over the default. Fields are string, bool, int, int64 or time.Duration. The error names the source and the setting,
// and what to write instead; the value of a secret is not in it.
func LoadSettings(into any, environment string, getenv func(string) string, document map[string]string) error {
	v := reflect.ValueOf(into).Elem()
	for i := range v.NumField() {
		tag := v.Type().Field(i).Tag
		name := tag.Get("env")
		if name == "" {
			continue
		}
		text, from := tag.Get("default"), "the default"
		if d, ok := document[name]; ok && d != "" {
			text, from = d, "the cluster's settings"
		}
		if e := strings.TrimSpace(getenv(name)); e != "" {
			text, from = e, environment
		}
		if err := setField(v.Field(i), text); err != nil {
			if tag.Get("secret") == "true" {
				err = fmt.Errorf("the value is not usable")
			}
			return &Error{Kind: ErrInvalid, Message: fmt.Sprintf("%s: %s: %v", from, name, err)}
		}
	}
	return nil
}

func setField(f reflect.Value, text string) error {
	switch f.Interface().(type) {
	case string:
		f.SetString(text)
	case bool:
		switch strings.ToLower(text) {
		case "", "0", "false", "no", "off":
			f.SetBool(false)
		case "1", "true", "yes", "on":
			f.SetBool(true)
		default:
			return fmt.Errorf("%q is neither yes nor no; write true or false", text)
		}
	case time.Duration:
		if text == "" || text == "0" {
			f.SetInt(0)
			return nil
		}
		d, err := time.ParseDuration(text)
		if err != nil {
			if n, numErr := strconv.Atoi(text); numErr == nil {
				return fmt.Errorf("%q has no unit; write %dm or %ds", text, n, n)
			}
			return fmt.Errorf("%q is not a duration; write it like 90s, 20m or 720h", text)
		}
		f.SetInt(int64(d))
	case int, int64:
		if text == "" {
			text = "0"
		}
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return fmt.Errorf("%q is not a whole number", text)
		}
		f.SetInt(n)
	default:
		return fmt.Errorf("settings of type %s are not supported", f.Type())
	}
	return nil
}
