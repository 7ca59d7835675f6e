package golden

import (
	"fmt"
	"regexp"
	"strings"
)

// crashed are the lines that a program prints when it ends by a panic or a signal.
var crashed = regexp.MustCompile(`(?m)^(panic:|fatal error:|goroutine \d+ \[|SIG[A-Z]+: )`)

// Refused judges the error of a case that must be refused: there must be one, and it must name at least
// one of Case.ExpectError as a word, in any case; a name of one letter behind "operand", in quotes, or
// before a colon, an equals sign or a bracket, so that the article "a" is none.
func Refused(want Case, err error) Result {
	r := Result{Key: "expect_error"}
	switch {
	case len(want.ExpectError) == 0:
		r.Text = "the case expects outputs"
		return r
	case err == nil:
		r.Text = "no error, but the case must be refused"
		return r
	case crashed.MatchString(err.Error()):
		r.Text = "a crash instead of an error: " + err.Error()
		return r
	}
	for _, name := range want.ExpectError {
		if names(err.Error(), name) {
			return Result{Key: r.Key, OK: true, Text: "refused, names " + name}
		}
	}
	r.Text = fmt.Sprintf("refused, but the error names none of %s: %v", strings.Join(want.ExpectError, ", "), err)
	return r
}

// names reports whether text names an operand or option. A word has no letter, digit or underscore
// on either side.
func names(text, name string) bool {
	q := regexp.QuoteMeta(name)
	const start, end = `(?:^|[^\p{L}\p{N}_])`, `(?:[^\p{L}\p{N}_]|$)`
	pattern := start + q + end
	if len(name) == 1 {
		pattern = start + `(?:operand ` + q + end + "|[\"'`]" + q + "[\"'`]|" + q + `(?:\.[\p{L}\p{N}_]+)*\s*[:=(\[])`
	}
	return regexp.MustCompile(`(?i)` + pattern).MatchString(text)
}
