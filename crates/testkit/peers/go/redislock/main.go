// Takes locks of redislock: `redislock HOST:PORT TTL`.
package main

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/bsm/redislock"
	"github.com/redis/go-redis/v9"
	"lockkeeper.test/peers/taker"
)

type library struct {
	client *redislock.Client
	ttl    time.Duration
}

func (l library) Take(name string, wait bool) (*taker.Held, error) {
	// Without a deadline the library gives up after the time to live.
	ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
	defer cancel()
	retry := redislock.NoRetry()
	if wait {
		retry = redislock.LinearBackoff(10 * time.Millisecond)
	}
	lock, err := l.client.Obtain(ctx, name, l.ttl, &redislock.Options{RetryStrategy: retry})
	if errors.Is(err, redislock.ErrNotObtained) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	return &taker.Held{
		Release: func() error { return lock.Release(context.Background()) },
		Extend:  func() error { return lock.Refresh(context.Background(), l.ttl, nil) },
	}, nil
}

func main() {
	ttl, err := time.ParseDuration(os.Args[2])
	taker.Must(err)
	client := redis.NewClient(&redis.Options{Addr: os.Args[1]})
	taker.Serve(library{redislock.New(client), ttl}, nil)
}
