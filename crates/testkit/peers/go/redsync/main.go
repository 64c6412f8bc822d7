// Takes locks of redsync: `redsync HOST:PORT TTL`.
package main

import (
	"errors"
	"os"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
	"lockkeeper.test/peers/taker"
)

type library struct {
	sync *redsync.Redsync
	ttl  time.Duration
}

func (l library) Take(name string, wait bool) (*taker.Held, error) {
	tries := 1
	if wait {
		tries = 100_000
	}
	mutex := l.sync.NewMutex(name, redsync.WithExpiry(l.ttl), redsync.WithTries(tries),
		redsync.WithRetryDelay(10*time.Millisecond))
	var taken *redsync.ErrTaken
	if err := mutex.Lock(); errors.As(err, &taken) || errors.Is(err, redsync.ErrFailed) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	done := func(ok bool, err error) error {
		if err == nil && !ok {
			return errors.New("not held")
		}
		return err
	}
	return &taker.Held{
		Release: func() error { return done(mutex.Unlock()) },
		Extend:  func() error { return done(mutex.Extend()) },
	}, nil
}

func main() {
	ttl, err := time.ParseDuration(os.Args[2])
	taker.Must(err)
	client := redis.NewClient(&redis.Options{Addr: os.Args[1]})
	taker.Serve(library{redsync.New(goredis.NewPool(client)), ttl}, nil)
}
