// Command control-plane is the Kubernetes API of the laboratory in one binary: etcd and
// kube-apiserver as sub commands. It is all that the demo and most tests need, where simulated
// nodes bind their pods themselves; kube-scheduler, kube-controller-manager and the kubelet are
// programs of their own, in the directories of their names, because each takes long to compile.
//
// Every sub command takes the flags of the program that it stands for (etcd: see etcd.go).
package main

import (
	"github.com/spf13/cobra"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"

	"epilogue.dev/epilogue/tests/control-plane/program"
)

func main() {
	program.Run("control-plane", map[string]func() *cobra.Command{
		"etcd":           etcdCommand,
		"kube-apiserver": apiserver.NewAPIServerCommand,
	})
}
