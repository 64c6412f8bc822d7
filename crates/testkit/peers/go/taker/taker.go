// Package taker is what the takers of Go libraries share: commands on standard input, answers on
// standard output, a line each. A program says `ready` first, and ends with its input.
package taker

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// Held is a lock that was taken. Its error is the library's: it was not ours any more.
type Held struct {
	Release func() error
	Extend  func() error
}

// Library takes locks: at once or not at all, or when their turn has come.
type Library interface {
	// Take answers with nil if the lock is taken and wait is false.
	Take(name string, wait bool) (*Held, error)
}

// Command answers a command that only one library knows.
type Command func(words []string) string

// Serve does as it is told until its input ends.
func Serve(library Library, more map[string]Command) {
	var held *Held
	fmt.Println("ready")
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		switch words[0] {
		case "take", "try":
			taken, err := library.Take(words[1], words[0] == "take")
			Must(err)
			if taken == nil {
				fmt.Println("busy")
				continue
			}
			held = taken
			fmt.Println("granted")
		case "release":
			fmt.Println(outcome("released", held.Release()))
		case "extend":
			fmt.Println(outcome("extended", held.Extend()))
		case "count":
			repeat(library, words, func(text string) string {
				number, err := strconv.Atoi(text)
				Must(err)
				return strconv.Itoa(number + 1)
			})
			fmt.Println("counted")
		case "sign":
			repeat(library, words, func(text string) string { return text + words[4] })
			fmt.Println("signed")
		default:
			fmt.Println(more[words[0]](words[1:]))
		}
	}
}

func outcome(done string, err error) string {
	if err != nil {
		return "refused " + err.Error()
	}
	return done
}

// Changes a file that checks nothing, many times: only the lock of that name keeps it right.
func repeat(library Library, words []string, change func(string) string) {
	times, err := strconv.Atoi(words[3])
	Must(err)
	for range times {
		held, err := library.Take(words[1], true)
		Must(err)
		text, err := os.ReadFile(words[2])
		Must(err)
		Must(os.WriteFile(words[2], []byte(change(strings.TrimSpace(string(text)))), 0o600))
		Must(held.Release())
		// Time for the others, where a library has no line.
		time.Sleep(2 * time.Millisecond)
	}
}

// Must ends the program with the error, if there is one.
func Must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
