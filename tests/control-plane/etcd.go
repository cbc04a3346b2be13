package main

import (
	"fmt"
	"net/url"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/embed"
)

// etcdCommand serves one etcd member on loopback. It never calls fsync: its data are thrown
// away with the laboratory, and a machine that crashes takes the laboratory with it anyway.
func etcdCommand() *cobra.Command {
	var dataDir, clientURL, peerURL string
	command := &cobra.Command{
		Use:          "etcd",
		Short:        "one etcd member on loopback, without fsync",
		Args:         cobra.NoArgs,
		SilenceUsage: true,
		RunE: func(*cobra.Command, []string) error {
			return runEtcd(dataDir, clientURL, peerURL)
		},
	}
	command.Flags().StringVar(&dataDir, "data-dir", "", "directory of the data (created when missing)")
	command.Flags().StringVar(&clientURL, "listen-client-url", "", "http URL for clients, as http://127.0.0.1:2379")
	command.Flags().StringVar(&peerURL, "listen-peer-url", "", "http URL for peers, as http://127.0.0.1:2380")
	for _, name := range []string{"data-dir", "listen-client-url", "listen-peer-url"} {
		if err := command.MarkFlagRequired(name); err != nil {
			panic(err)
		}
	}
	return command
}

func runEtcd(dataDir, clientURL, peerURL string) error {
	client, err := url.Parse(clientURL)
	if err != nil {
		return fmt.Errorf("--listen-client-url: %w", err)
	}
	peer, err := url.Parse(peerURL)
	if err != nil {
		return fmt.Errorf("--listen-peer-url: %w", err)
	}
	config := embed.NewConfig()
	config.Dir = dataDir
	config.LogLevel = "warn"
	config.UnsafeNoFsync = true
	config.QuotaBackendBytes = 8 << 30
	config.ListenClientUrls, config.AdvertiseClientUrls = []url.URL{*client}, []url.URL{*client}
	config.ListenPeerUrls, config.AdvertisePeerUrls = []url.URL{*peer}, []url.URL{*peer}
	config.InitialCluster = config.InitialClusterFromName(config.Name)

	server, err := embed.StartEtcd(config)
	if err != nil {
		return fmt.Errorf("start etcd: %w", err)
	}
	defer server.Close()
	select {
	case <-server.Server.ReadyNotify():
	case <-time.After(time.Minute):
		return fmt.Errorf("etcd was not ready within a minute")
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	select {
	case <-stop:
		return nil
	case err := <-server.Err():
		return fmt.Errorf("etcd: %w", err)
	}
}
