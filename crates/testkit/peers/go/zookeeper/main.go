// Takes locks of go-zookeeper in a process of its own: the `taker` program's counterpart.
//
// `zookeeper HOSTS`, then commands on standard input, answers on standard output:
//
//	take NAME              granted, when its turn has come
//	release                released
//	count NAME PATH TIMES  counted, after so many rounds of take, read, write, release
//	contenders NAME        contenders, and what the nodes in the line say
//
// It says `ready` first, and ends with its input.
package main

import (
	"bufio"
	"fmt"
	"io"
	"log"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"
)

type taker struct {
	conn *zk.Conn
	held *zk.Lock
}

func (t *taker) lock(name string) *zk.Lock {
	return zk.NewLock(t.conn, name, zk.WorldACL(zk.PermAll))
}

func (t *taker) take(name string) (string, error) {
	t.held = t.lock(name)
	return "granted", t.held.LockWithData([]byte("theirs"))
}

func (t *taker) release() (string, error) {
	return "released", t.held.Unlock()
}

// Changes a file that checks nothing: only the lock keeps it right.
func (t *taker) change(name, path string) error {
	lock := t.lock(name)
	if err := lock.Lock(); err != nil {
		return err
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	number, err := strconv.Atoi(string(text))
	if err != nil {
		return err
	}
	if err := os.WriteFile(path, []byte(strconv.Itoa(number+1)), 0o644); err != nil {
		return err
	}
	return lock.Unlock()
}

func (t *taker) count(name, path, times string) (string, error) {
	rounds, err := strconv.Atoi(times)
	for i := 0; i < rounds && err == nil; i++ {
		err = t.change(name, path)
	}
	return "counted", err
}

func (t *taker) contenders(name string) (string, error) {
	nodes, _, err := t.conn.Children(name)
	all := "contenders"
	for _, node := range nodes {
		data, _, err := t.conn.Get(name + "/" + node)
		if err != nil {
			return "", err
		}
		first, _, _ := strings.Cut(string(data), "\n")
		all += " " + first
	}
	return all, err
}

func (t *taker) obey(words []string) (string, error) {
	switch words[0] {
	case "take":
		return t.take(words[1])
	case "release":
		return t.release()
	case "count":
		return t.count(words[1], words[2], words[3])
	case "contenders":
		return t.contenders(words[1])
	default:
		return "", fmt.Errorf("unknown command %q", words[0])
	}
}

func main() {
	silent := zk.WithLogger(log.New(io.Discard, "", 0))
	conn, events, err := zk.Connect(strings.Split(os.Args[1], ","), 2*time.Second, silent)
	if err != nil {
		log.Fatal(err)
	}
	for event := range events {
		if event.State == zk.StateHasSession {
			break
		}
	}
	t := &taker{conn: conn}
	fmt.Println("ready")
	commands := bufio.NewScanner(os.Stdin)
	for commands.Scan() {
		answer, err := t.obey(strings.Fields(commands.Text()))
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(answer)
	}
}
