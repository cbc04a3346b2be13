package main

import (
	"bufio"
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	cgroups   = "/sys/fs/cgroup"
	scopesOf  = "cri-containerd-*.scope"
	kubeletFs = "/var/lib/kubelet"
)

// sample is one line of the record: what is left of the node, and what its pods use. Numbers that
// cannot be read are -1.
type sample struct {
	// Milliseconds since 1970, by the node's clock.
	At int64 `json:"at"`
	// As the kubelet reckons them: bytes of memory, tasks, bytes of its file system.
	Memory int64 `json:"memory"`
	Tasks  int64 `json:"tasks"`
	Disk   int64 `json:"disk"`
	// Processes that the kernel has killed for memory since the boot, in and out of pods.
	OOMKills int64 `json:"oom_kills"`
	// Microseconds for which some task has waited for memory since the boot.
	Stalled int64 `json:"stalled"`
	// By uid.
	Pods map[string]pod `json:"pods"`
}

type pod struct {
	Memory     int64 `json:"memory"`
	Tasks      int64 `json:"tasks"`
	OOMKills   int64 `json:"oom_kills"`
	Containers int   `json:"containers"` // that run, the sandbox's with them
}

// record writes samples until it is ended. It reads few files and keeps its own memory, so that it
// goes on where others wait.
func record(milliseconds int) error {
	if err := syscall.Mlockall(syscall.MCL_CURRENT | syscall.MCL_FUTURE); err != nil {
		return err
	}
	total := meminfo("MemTotal:")
	out := json.NewEncoder(os.Stdout)
	for range time.Tick(time.Duration(milliseconds) * time.Millisecond) {
		now := sample{
			Memory:   total - workingSet(cgroups),
			Tasks:    tasksLeft(),
			Disk:     diskLeft(),
			OOMKills: counter("/proc/vmstat", "oom_kill"),
			Stalled:  stalled(),
			Pods:     pods(),
			At:       time.Now().UnixMilli(),
		}
		if err := out.Encode(now); err != nil {
			return err
		}
	}
	return nil
}

func pods() map[string]pod {
	found := map[string]pod{}
	// Guaranteed pods lie above the two other classes.
	for _, class := range []string{"", "kubepods-burstable.slice", "kubepods-besteffort.slice"} {
		slices, _ := filepath.Glob(filepath.Join(cgroups, "kubepods.slice", class, "*-pod*.slice"))
		for _, slice := range slices {
			_, uid, _ := strings.Cut(strings.TrimSuffix(filepath.Base(slice), ".slice"), "-pod")
			scopes, _ := filepath.Glob(filepath.Join(slice, scopesOf))
			found[strings.ReplaceAll(uid, "_", "-")] = pod{
				Memory:     value(filepath.Join(slice, "memory.current")),
				Tasks:      value(filepath.Join(slice, "pids.current")),
				OOMKills:   counter(filepath.Join(slice, "memory.events"), "oom_kill"),
				Containers: len(scopes),
			}
		}
	}
	return found
}

func meminfo(name string) int64 {
	kilobytes := counter("/proc/meminfo", name)
	return kilobytes * 1024
}

func workingSet(cgroup string) int64 {
	stat := filepath.Join(cgroup, "memory.stat")
	return counter(stat, "anon") + counter(stat, "file") - counter(stat, "inactive_file")
}

func tasksLeft() int64 {
	load, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return -1
	}
	fields := strings.Fields(string(load))
	_, tasks, _ := strings.Cut(fields[3], "/")
	most := min(value("/proc/sys/kernel/pid_max"), value("/proc/sys/kernel/threads-max"))
	return most - parse(tasks)
}

func diskLeft() int64 {
	var stat syscall.Statfs_t
	if err := syscall.Statfs(kubeletFs, &stat); err != nil {
		return -1
	}
	return int64(stat.Bavail) * stat.Bsize
}

func stalled() int64 {
	text, err := os.ReadFile("/proc/pressure/memory")
	if err != nil {
		return -1
	}
	first, _, _ := strings.Cut(string(text), "\n")
	_, total, _ := strings.Cut(first, "total=")
	return parse(total)
}

// counter finds `NAME VALUE` in a file of such lines.
func counter(path, name string) int64 {
	file, err := os.Open(path)
	if err != nil {
		return -1
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) > 1 && fields[0] == name {
			return parse(fields[1])
		}
	}
	return -1
}

func value(path string) int64 {
	text, err := os.ReadFile(path)
	if err != nil {
		return -1
	}
	return parse(strings.TrimSpace(string(text)))
}

func parse(text string) int64 {
	number, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return -1
	}
	return number
}
