package main

import (
	"encoding/json"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

// result is what a trainer leaves as its container's termination message.
type result struct {
	// Steps that were done, and the last one that was saved.
	Done  int `json:"done"`
	Saved int `json:"saved"`
	// Milliseconds from SIGUSR1 to SIGTERM; without the first, -1.
	Asked int64 `json:"asked"`
	// What the file of the announced end said at SIGTERM, and so long before it first said so, in
	// milliseconds.
	EndsAt    string `json:"ends_at"`
	Announced int64  `json:"announced"`
}

// trainer works as a training job does: a step is lost unless it was saved before the end.
func trainer(interval, step int, announced string) error {
	term, usr1 := make(chan os.Signal, 1), make(chan os.Signal, 1)
	signal.Notify(term, syscall.SIGTERM)
	signal.Notify(usr1, syscall.SIGUSR1)
	steps := time.Tick(time.Duration(step) * time.Millisecond)
	var asked, first time.Time
	found := result{Asked: -1, Announced: -1}
	for {
		select {
		case <-usr1:
			asked = time.Now()
			found.Saved = found.Done
		case <-steps:
			found.Done++
			if found.Done%interval == 0 || !asked.IsZero() {
				found.Saved = found.Done
			}
			text, _ := os.ReadFile(announced)
			if found.EndsAt = strings.TrimSpace(string(text)); found.EndsAt != "" && first.IsZero() {
				first = time.Now()
			}
		case <-term:
			if !asked.IsZero() {
				found.Asked = time.Since(asked).Milliseconds()
			}
			if !first.IsZero() {
				found.Announced = time.Since(first).Milliseconds()
			}
			text, err := json.Marshal(found)
			if err != nil {
				return err
			}
			if err := os.WriteFile("/dev/termination-log", text, 0o644); err != nil {
				return err
			}
			os.Exit(143)
		}
	}
}
