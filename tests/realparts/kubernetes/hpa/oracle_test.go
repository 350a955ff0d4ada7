// Package hpa runs Kubernetes' own HorizontalPodAutoscaler controller, unchanged, in virtual time.
//
// Why it exists: it is the judge of our decision core. It reads cases as JSON lines from the file that
// ORACLE_CASES names and writes, for each, the size and conditions after every sync to ORACLE_ANSWERS.
package hpa

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/meta/testrestmapper"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	scalefake "k8s.io/client-go/scale/fake"
	core "k8s.io/client-go/testing"
	featuregatetesting "k8s.io/component-base/featuregate/testing"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	_ "k8s.io/kubernetes/pkg/apis/apps/install"
	_ "k8s.io/kubernetes/pkg/apis/autoscaling/install"
	_ "k8s.io/kubernetes/pkg/apis/core/install"
	"k8s.io/kubernetes/pkg/controller/podautoscaler"
	"k8s.io/kubernetes/pkg/controller/podautoscaler/metrics"
	"k8s.io/kubernetes/pkg/features"
)

const (
	namespace = "test"
	name      = "scaler"
	sync15    = 15 * time.Second
)

// Times in a case are seconds since the start of the bubble.
type podCase struct {
	Name         string                      `json:"name"`
	Phase        string                      `json:"phase"`
	Deleting     bool                        `json:"deleting"`
	Ready        *bool                       `json:"ready"`
	ReadyChanged *float64                    `json:"readyChanged"`
	Started      *float64                    `json:"started"`
	Requests     map[string]map[string]int64 `json:"requests"`
}

type sampleCase struct {
	Value  int64   `json:"value"`
	At     float64 `json:"at"`
	Window float64 `json:"window"`
}

type readingCase struct {
	Error  bool                  `json:"error"`
	Pods   map[string]sampleCase `json:"pods"`
	Values []int64               `json:"values"`
}

type stepCase struct {
	Replicas       *int32        `json:"replicas"`
	StatusReplicas *int32        `json:"statusReplicas"`
	Pods           []podCase     `json:"pods"`
	Metrics        []readingCase `json:"metrics"`
}

type oracleCase struct {
	ID          string          `json:"id"`
	Spec        json.RawMessage `json:"spec"`
	Replicas    int32           `json:"replicas"`
	ScaleToZero bool            `json:"scaleToZero"`
	Steps       []stepCase      `json:"steps"`
}

type conditionAnswer struct {
	Type   string `json:"type"`
	Status string `json:"status"`
	Reason string `json:"reason"`
}

type stepAnswer struct {
	Size       int32             `json:"size"`
	Conditions []conditionAnswer `json:"conditions"`
}

type answer struct {
	ID    string       `json:"id"`
	Error string       `json:"error,omitempty"`
	Steps []stepAnswer `json:"steps"`
}

// cluster is what the controller sees: the size, the pods' metrics of the current step.
type cluster struct {
	sync.Mutex
	base     time.Time
	replicas int32
	status   *int32
	step     stepCase
	metrics  []autoscalingv2.MetricSpec
}

func (c *cluster) at(seconds float64) time.Time {
	return c.base.Add(time.Duration(seconds * float64(time.Second)))
}

// reading gives the step's reading of the metric that is asked for; names are unique within a case.
func (c *cluster) reading(wanted string) (readingCase, error) {
	c.Lock()
	defer c.Unlock()
	for i, spec := range c.metrics {
		if metricKey(spec) == wanted && i < len(c.step.Metrics) {
			if c.step.Metrics[i].Error {
				break
			}
			return c.step.Metrics[i], nil
		}
	}
	return readingCase{}, fmt.Errorf("no reading for %s", wanted)
}

func metricKey(spec autoscalingv2.MetricSpec) string {
	switch spec.Type {
	case autoscalingv2.ResourceMetricSourceType:
		return "resource/" + string(spec.Resource.Name) + "/"
	case autoscalingv2.ContainerResourceMetricSourceType:
		return "resource/" + string(spec.ContainerResource.Name) + "/" + spec.ContainerResource.Container
	case autoscalingv2.PodsMetricSourceType:
		return "pods/" + spec.Pods.Metric.Name
	case autoscalingv2.ObjectMetricSourceType:
		return "object/" + spec.Object.Metric.Name
	case autoscalingv2.ExternalMetricSourceType:
		return "external/" + spec.External.Metric.Name
	}
	return "unknown"
}

func (c *cluster) podInfo(key string) (metrics.PodMetricsInfo, time.Time, error) {
	reading, err := c.reading(key)
	if err != nil {
		return nil, time.Time{}, err
	}
	info := metrics.PodMetricsInfo{}
	for pod, sample := range reading.Pods {
		window := time.Duration(sample.Window * float64(time.Second))
		info[pod] = metrics.PodMetric{Timestamp: c.at(sample.At), Window: window, Value: sample.Value}
	}
	return info, time.Now(), nil
}

func (c *cluster) GetResourceMetric(_ context.Context, res v1.ResourceName, _ string, _ labels.Selector, container string) (metrics.PodMetricsInfo, time.Time, error) {
	return c.podInfo("resource/" + string(res) + "/" + container)
}

func (c *cluster) GetRawMetric(metric string, _ string, _ labels.Selector, _ labels.Selector) (metrics.PodMetricsInfo, time.Time, error) {
	return c.podInfo("pods/" + metric)
}

func (c *cluster) GetObjectMetric(metric string, _ string, _ *autoscalingv2.CrossVersionObjectReference, _ labels.Selector) (int64, time.Time, error) {
	reading, err := c.reading("object/" + metric)
	if err != nil || len(reading.Values) == 0 {
		return 0, time.Time{}, fmt.Errorf("no value for object metric %s", metric)
	}
	return reading.Values[0], time.Now(), nil
}

func (c *cluster) GetExternalMetric(metric string, _ string, _ labels.Selector) ([]int64, time.Time, error) {
	reading, err := c.reading("external/" + metric)
	if err != nil || len(reading.Values) == 0 {
		return nil, time.Time{}, fmt.Errorf("no value for external metric %s", metric)
	}
	return reading.Values, time.Now(), nil
}

func (c *cluster) scaleClient() *scalefake.FakeScaleClient {
	client := &scalefake.FakeScaleClient{}
	client.AddReactor("get", "*", func(core.Action) (bool, runtime.Object, error) {
		c.Lock()
		defer c.Unlock()
		scale := &autoscalingv1.Scale{ObjectMeta: metav1.ObjectMeta{Name: "target", Namespace: namespace}}
		scale.Spec.Replicas, scale.Status.Replicas = c.replicas, c.replicas
		if c.status != nil {
			scale.Status.Replicas = *c.status
		}
		scale.Status.Selector = "app=target"
		return true, scale, nil
	})
	client.AddReactor("update", "*", func(action core.Action) (bool, runtime.Object, error) {
		c.Lock()
		defer c.Unlock()
		scale := action.(core.UpdateAction).GetObject().(*autoscalingv1.Scale)
		c.replicas = scale.Spec.Replicas
		return true, scale, nil
	})
	return client
}

func (c *cluster) pods() []any {
	c.Lock()
	defer c.Unlock()
	var out []any
	for _, p := range c.step.Pods {
		out = append(out, c.pod(p))
	}
	return out
}

func (c *cluster) pod(p podCase) *v1.Pod {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: p.Name, Namespace: namespace, Labels: map[string]string{"app": "target"}}}
	pod.Status.Phase = v1.PodPhase(p.Phase)
	if p.Deleting {
		now := metav1.NewTime(c.base)
		pod.DeletionTimestamp = &now
	}
	if p.Started != nil {
		started := metav1.NewTime(c.at(*p.Started))
		pod.Status.StartTime = &started
	}
	if p.Ready != nil {
		status := v1.ConditionFalse
		if *p.Ready {
			status = v1.ConditionTrue
		}
		condition := v1.PodCondition{Type: v1.PodReady, Status: status}
		if p.ReadyChanged != nil {
			condition.LastTransitionTime = metav1.NewTime(c.at(*p.ReadyChanged))
		}
		pod.Status.Conditions = []v1.PodCondition{condition}
	}
	for container, requests := range p.Requests {
		list := v1.ResourceList{}
		for res, milli := range requests {
			list[v1.ResourceName(res)] = *resource.NewMilliQuantity(milli, resource.DecimalSI)
		}
		pod.Spec.Containers = append(pod.Spec.Containers, v1.Container{Name: container, Resources: v1.ResourceRequirements{Requests: list}})
	}
	return pod
}

// run plays one case; it must be called inside a synctest bubble.
func run(c oracleCase, mapper meta.RESTMapper) answer {
	result := answer{ID: c.ID}
	hpa := &autoscalingv2.HorizontalPodAutoscaler{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace}}
	if err := json.Unmarshal(c.Spec, &hpa.Spec); err != nil {
		result.Error = err.Error()
		return result
	}
	legacyscheme.Scheme.Default(hpa) // the API server's own defaults, so that ours are judged too
	world := &cluster{base: time.Now(), replicas: c.Replicas, metrics: hpa.Spec.Metrics}
	client := fake.NewClientset(hpa)
	ctx, cancel := context.WithCancel(klog.NewContext(context.Background(), klog.LoggerWithName(klog.Background(), "oracle")))
	factory := informers.NewSharedInformerFactory(client, 0)
	podInformer := factory.Core().V1().Pods()
	controller := podautoscaler.NewHorizontalController(ctx, client.CoreV1(), world.scaleClient(), client.AutoscalingV2(), mapper, world,
		factory.Autoscaling().V2().HorizontalPodAutoscalers(), podInformer, sync15, 300*time.Second, 0.1, 300*time.Second, 30*time.Second)
	world.set(c, 0)
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	var running sync.WaitGroup
	running.Go(func() { controller.Run(ctx, 1) })
	for i := range c.Steps {
		world.set(c, i)
		if err := podInformer.Informer().GetIndexer().Replace(world.pods(), ""); err != nil {
			result.Error = err.Error()
			break
		}
		time.Sleep(sync15)
		synctest.Wait()
		result.Steps = append(result.Steps, world.answer(ctx, client))
	}
	cancel()
	running.Wait()
	factory.Shutdown()
	return result
}

func (c *cluster) set(of oracleCase, i int) {
	c.Lock()
	defer c.Unlock()
	if len(of.Steps) == 0 {
		return
	}
	c.step = of.Steps[i]
	c.status = c.step.StatusReplicas
	if c.step.Replicas != nil {
		c.replicas = *c.step.Replicas
	}
}

func (c *cluster) answer(ctx context.Context, client *fake.Clientset) stepAnswer {
	c.Lock()
	size := c.replicas
	c.Unlock()
	out := stepAnswer{Size: size}
	hpa, err := client.AutoscalingV2().HorizontalPodAutoscalers(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return out
	}
	for _, condition := range hpa.Status.Conditions {
		out.Conditions = append(out.Conditions, conditionAnswer{string(condition.Type), string(condition.Status), condition.Reason})
	}
	return out
}

func TestOracle(t *testing.T) {
	casesPath, answersPath := os.Getenv("ORACLE_CASES"), os.Getenv("ORACLE_ANSWERS")
	if casesPath == "" || answersPath == "" {
		t.Skip("ORACLE_CASES and ORACLE_ANSWERS name the files to read and to write")
	}
	// The default handlers sleep relative to the real time of the last error: in the bubble's year 2000 that is for ever.
	utilruntime.ErrorHandlers = nil
	klog.SetOutput(io.Discard)
	klog.LogToStderr(false)
	mapper := testrestmapper.TestOnlyStaticRESTMapper(legacyscheme.Scheme)
	in, err := os.Open(casesPath)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := os.Create(answersPath)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	writer := bufio.NewWriter(out)
	defer writer.Flush()
	decoder, encoder := json.NewDecoder(bufio.NewReader(in)), json.NewEncoder(writer)
	featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, features.HPAConfigurableTolerance, true)
	for decoder.More() {
		var c oracleCase
		if err := decoder.Decode(&c); err != nil {
			t.Fatal(err)
		}
		featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, features.HPAScaleToZero, c.ScaleToZero)
		var result answer
		synctest.Test(t, func(*testing.T) { result = run(c, mapper) })
		if err := encoder.Encode(result); err != nil {
			t.Fatal(err)
		}
	}
}
