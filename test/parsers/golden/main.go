// Command golden asks the parsers that stand behind the gateway what they make of the corpora of package parsers, and writes
// their answers to test/parsers/testdata. It is run by hand, when a corpus grows or an engine has a newer parser:
//
//	go run ./test/parsers/golden -python PYTHON -include DIR
//
// PYTHON is an interpreter that has pydantic, starlette and python-multipart (pip in a virtual environment);
// DIR holds nlohmann/json.hpp (Debian: nlohmann-json3-dev) and httplib.h (cpp-httplib, one file). A C++ compiler is needed.
package main

import (
	"bytes"
	"encoding/binary"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/levelrail/levelrail/test/parsers"
)

func main() {
	python := flag.String("python", "python3", "the Python interpreter")
	include := flag.String("include", "/usr/include", "the directory of nlohmann/json.hpp and httplib.h")
	flag.Parse()
	if err := run(*python, *include); err != nil {
		fmt.Fprintln(os.Stderr, "golden:", err)
		os.Exit(1)
	}
}

const (
	originals = "test/parsers/golden/originals"
	testdata  = "test/parsers/testdata"
)

func run(python, include string) error {
	dir, err := os.MkdirTemp("", "golden")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	var bodies, forms [][]byte
	bodies = parsers.Bodies()
	for _, f := range parsers.Forms() {
		forms = append(forms, []byte(f.ContentType), f.Body)
	}
	pythonVersion := `import platform; print("Python", platform.python_version())`
	for _, g := range []struct {
		name, version string
		frames        [][]byte
		lines         int
	}{
		{"bodies.py", pythonVersion + `; import pydantic; print("pydantic", pydantic.VERSION)`, bodies, len(bodies)},
		{"bodies.cpp", "NLOHMANN_JSON_VERSION_MAJOR.NLOHMANN_JSON_VERSION_MINOR.NLOHMANN_JSON_VERSION_PATCH", bodies, len(bodies)},
		{"forms.py", pythonVersion + `; import starlette, python_multipart; print("Starlette", starlette.__version__); print("python-multipart", python_multipart.__version__)`, forms, len(forms) / 2},
		{"forms.cpp", "CPPHTTPLIB_VERSION", forms, len(forms) / 2},
	} {
		source := filepath.Join(originals, g.name)
		var version []byte
		var program *exec.Cmd
		if strings.HasSuffix(g.name, ".py") {
			if version, err = exec.Command(python, "-c", g.version).Output(); err != nil {
				return fmt.Errorf("ask %s for versions: %w", python, err)
			}
			program = exec.Command(python, source)
		} else {
			binary := filepath.Join(dir, g.name+".bin")
			if out, err := exec.Command("g++", "-std=c++17", "-O1", "-pthread", "-I", include, "-o", binary, source).CombinedOutput(); err != nil {
				return fmt.Errorf("compile %s: %w\n%s", source, err, out)
			}
			if version, err = headerVersion(include, g.name, g.version); err != nil {
				return err
			}
			program = exec.Command(binary)
		}
		var in bytes.Buffer
		for _, f := range g.frames {
			binary.Write(&in, binary.LittleEndian, uint32(len(f)))
			in.Write(f)
		}
		program.Stdin, program.Stderr = &in, os.Stderr
		out, err := program.Output()
		if err != nil {
			return fmt.Errorf("run %s: %w", source, err)
		}
		if n := bytes.Count(out, []byte("\n")); n != g.lines {
			return fmt.Errorf("%s answered %d of %d questions", source, n, g.lines)
		}
		head := "# " + strings.Join(strings.Fields(string(version)), " ") + ", asked by test/parsers/golden; one line for each of the corpus, in its order\n"
		if err := os.WriteFile(filepath.Join(testdata, g.name+".golden"), append([]byte(head), out...), 0o644); err != nil {
			return err
		}
		fmt.Println(g.name, g.lines, strings.Fields(string(version)))
	}
	return nil
}

// headerVersion lets the preprocessor say which version a header is of.
func headerVersion(include, name, macro string) ([]byte, error) {
	library := map[string]string{"bodies.cpp": "nlohmann/json.hpp", "forms.cpp": "httplib.h"}[name]
	c := exec.Command("g++", "-std=c++17", "-E", "-P", "-x", "c++", "-I", include, "-")
	c.Stdin = strings.NewReader("#include <" + library + ">\nthe_version " + macro + "\n")
	out, err := c.Output()
	if err != nil {
		return nil, fmt.Errorf("ask for the version of %s: %w", library, err)
	}
	_, version, found := bytes.Cut(out, []byte("the_version "))
	if !found {
		return nil, fmt.Errorf("%s says no version", library)
	}
	return []byte(library + " " + strings.NewReplacer(" ", "", `"`, "").Replace(string(version))), nil
}
