// Command karpenter drains nodes as Karpenter does: it is Karpenter's own controller of node
// termination and its queue of evictions, with its provider for tests, which needs no cloud. The
// rest of Karpenter chooses and buys nodes, which no test here needs. It serves no port.
package main

import (
	"context"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	kwok "sigs.k8s.io/karpenter/kwok/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/apis"
	karpenterv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/controllers/node/termination"
	"sigs.k8s.io/karpenter/pkg/controllers/node/termination/terminator"
	"sigs.k8s.io/karpenter/pkg/events"
	"sigs.k8s.io/karpenter/pkg/operator/injection"
	"sigs.k8s.io/karpenter/pkg/operator/options"
)

func main() {
	ctrl.SetLogger(zap.New())
	ctx := injection.WithOptionsOrDie(ctrl.SetupSignalHandler(), options.Injectables...)
	if err := run(ctx); err != nil {
		ctrl.Log.Error(err, "cannot run")
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	config, err := ctrl.GetConfig()
	if err != nil {
		return err
	}
	if err := apiextensionsv1.AddToScheme(scheme.Scheme); err != nil {
		return err
	}
	api, err := client.New(config, client.Options{Scheme: scheme.Scheme})
	if err != nil {
		return err
	}
	for _, crd := range apis.CRDs {
		if err := client.IgnoreAlreadyExists(api.Create(ctx, crd)); err != nil {
			return err
		}
	}
	if err := known(ctx, api); err != nil {
		return err
	}
	mgr, err := manager.New(config, manager.Options{
		Scheme:                 scheme.Scheme,
		Metrics:                server.Options{BindAddress: "0"},
		HealthProbeBindAddress: "0",
	})
	if err != nil {
		return err
	}
	if err := index(ctx, mgr); err != nil {
		return err
	}
	cached := mgr.GetClient()
	recorder := events.NewRecorder(mgr.GetEventRecorderFor("karpenter"))
	provider := kwok.NewCloudProvider(ctx, cached, nil)
	queue := terminator.NewQueue(cached, recorder)
	drain := terminator.NewTerminator(clock.RealClock{}, cached, queue, recorder)
	if err := queue.Register(ctx, mgr); err != nil {
		return err
	}
	controller := termination.NewController(clock.RealClock{}, cached, provider, drain, recorder)
	if err := controller.Register(ctx, mgr); err != nil {
		return err
	}
	return mgr.Start(ctx)
}

// known waits until the API serves the kinds that it was just given.
func known(ctx context.Context, api client.Client) error {
	served := func(ctx context.Context) (bool, error) {
		return api.List(ctx, &karpenterv1.NodeClaimList{}) == nil, nil
	}
	return wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, time.Minute, true, served)
}

// index provides the fields by which the controller looks objects up.
func index(ctx context.Context, mgr manager.Manager) error {
	fields := mgr.GetFieldIndexer()
	err := fields.IndexField(ctx, &corev1.Pod{}, "spec.nodeName", func(o client.Object) []string {
		return []string{o.(*corev1.Pod).Spec.NodeName}
	})
	if err != nil {
		return err
	}
	attachment := &storagev1.VolumeAttachment{}
	err = fields.IndexField(ctx, attachment, "spec.nodeName", func(o client.Object) []string {
		return []string{o.(*storagev1.VolumeAttachment).Spec.NodeName}
	})
	if err != nil {
		return err
	}
	claim := &karpenterv1.NodeClaim{}
	return fields.IndexField(ctx, claim, "status.providerID", func(o client.Object) []string {
		return []string{o.(*karpenterv1.NodeClaim).Status.ProviderID}
	})
}
