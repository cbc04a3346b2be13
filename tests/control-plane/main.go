// Command control-plane is the real Kubernetes of the laboratory in one binary: etcd,
// kube-apiserver, kube-controller-manager, kube-scheduler and kubelet as sub commands.
//
// Every sub command takes the flags of the program that it stands for (etcd: see etcd.go).
// With EXIT_WITH_STDIN=1 in the environment the process ends when its standard input is
// closed, so that it cannot outlive whoever started it, however that one ended.
package main

import (
	"context"
	"io"
	"os"

	"github.com/spf13/cobra"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

func main() {
	if os.Getenv("EXIT_WITH_STDIN") == "1" {
		go exitWithStdin()
	}
	os.Exit(cli.Run(program()))
}

// program picks the sub command before cobra does: each Kubernetes program is a root command
// of its own, with global flags and a help text that a shared parent would mix up.
func program() *cobra.Command {
	commands := map[string]func() *cobra.Command{
		"etcd":                    etcdCommand,
		"kube-apiserver":          apiserver.NewAPIServerCommand,
		"kube-controller-manager": controllermanager.NewControllerManagerCommand,
		"kube-scheduler":          func() *cobra.Command { return scheduler.NewSchedulerCommand() },
		"kubelet":                 func() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) },
	}
	if len(os.Args) > 1 {
		if build, known := commands[os.Args[1]]; known {
			command := build()
			command.SetArgs(os.Args[2:])
			os.Args = append([]string{os.Args[1]}, os.Args[2:]...)
			return command
		}
	}
	root := &cobra.Command{
		Use:          "control-plane",
		Short:        "etcd and the Kubernetes programs of the laboratory, one per sub command",
		SilenceUsage: true,
	}
	for name := range commands {
		root.AddCommand(&cobra.Command{Use: name, Run: func(*cobra.Command, []string) {}})
	}
	return root
}

func exitWithStdin() {
	_, _ = io.Copy(io.Discard, os.Stdin)
	os.Exit(0)
}
