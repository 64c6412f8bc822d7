// Takes locks and terms of etcd's package concurrency: `etcd HOST:PORT`.
//
//	campaign NAME VALUE   elected, when its turn has come
//	resign                resigned
//	leader NAME           leader VALUE
package main

import (
	"context"
	"errors"
	"os"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"lockkeeper.test/peers/taker"
)

type library struct{ session *concurrency.Session }

func (l library) Take(name string, wait bool) (*taker.Held, error) {
	// A mutex knows itself again, so each lock has one of its own.
	mutex := concurrency.NewMutex(l.session, name)
	take := mutex.Lock
	if !wait {
		take = mutex.TryLock
	}
	if err := take(context.Background()); errors.Is(err, concurrency.ErrLocked) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	return &taker.Held{Release: func() error { return mutex.Unlock(context.Background()) }}, nil
}

func main() {
	client, err := clientv3.New(clientv3.Config{Endpoints: os.Args[1:2]})
	taker.Must(err)
	session, err := concurrency.NewSession(client, concurrency.WithTTL(2))
	taker.Must(err)
	var election *concurrency.Election
	more := map[string]taker.Command{
		"campaign": func(words []string) string {
			election = concurrency.NewElection(session, words[0])
			taker.Must(election.Campaign(context.Background(), words[1]))
			return "elected"
		},
		"resign": func([]string) string {
			taker.Must(election.Resign(context.Background()))
			return "resigned"
		},
		"leader": func(words []string) string {
			answer, err := concurrency.NewElection(session, words[0]).Leader(context.Background())
			taker.Must(err)
			return "leader " + string(answer.Kvs[0].Value)
		},
	}
	taker.Serve(library{session}, more)
}
