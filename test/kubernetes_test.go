// SPDX-License-Identifier: Apache-2.0

package test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"github.com/weirlb/weir/internal/config"
	"github.com/weirlb/weir/internal/weirtest"
)

const manifest = "../packaging/kubernetes/weir.yaml"

// object is a document of the manifest, with what the test holds it to.
type object struct {
	APIVersion string `yaml:"apiVersion"`
	Kind       string
	Metadata   struct {
		Name, Namespace string
		Labels          map[string]string
	}
	Data map[string]string
	Spec struct {
		ClusterIP             string           `yaml:"clusterIP"`
		ExternalTrafficPolicy string           `yaml:"externalTrafficPolicy"`
		Selector              map[string]any   `yaml:"selector"`
		Ports                 []map[string]any `yaml:"ports"`
		Template              struct {
			Metadata struct{ Labels map[string]string }
			Spec     podSpec
		} `yaml:"template"`
	}
}

type podSpec struct {
	Grace      int `yaml:"terminationGracePeriodSeconds"`
	Containers []struct {
		Args  []string
		Ports []struct {
			Name string
			Port int `yaml:"containerPort"`
		}
		Startup   probe `yaml:"startupProbe"`
		Readiness probe `yaml:"readinessProbe"`
		Liveness  probe `yaml:"livenessProbe"`
		Lifecycle any   `yaml:"lifecycle"`
		Mounts    []struct {
			Name      string
			SubPath   string `yaml:"subPath"`
			MountPath string `yaml:"mountPath"`
		} `yaml:"volumeMounts"`
	}
	Volumes []struct {
		Name      string
		ConfigMap struct{ Name string } `yaml:"configMap"`
		Secret    struct {
			SecretName string `yaml:"secretName"`
		}
	}
}

type probe struct {
	Get struct {
		Path string
		Port string
	} `yaml:"httpGet"`
	Period    int `yaml:"periodSeconds"`
	Threshold int `yaml:"failureThreshold"`
}

func objects(t *testing.T) map[string]object {
	t.Helper()
	text, err := os.ReadFile(manifest)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]object{}
	for doc := range strings.SplitSeq(string(text), "\n---\n") {
		var o object
		if err := yaml.Unmarshal([]byte(doc), &o); err != nil {
			t.Fatalf("%v\n%s", err, doc)
		}
		if o.APIVersion == "" || o.Metadata.Name == "" {
			t.Fatalf("no object:\n%s", doc)
		}
		key := o.Kind + " " + o.Metadata.Name
		if _, twice := out[key]; twice {
			t.Errorf("%s is there twice", key)
		}
		out[key] = o
	}
	return out
}

// TestKubernetesManifest: all documents can be read, what refers to something
// finds it, the times nest, and the configuration inside has no finding.
func TestKubernetesManifest(t *testing.T) {
	all := objects(t)
	for _, want := range []string{
		"Namespace weir", "ServiceAccount weir", "ConfigMap weir", "Deployment weir", "Service weir", "PodDisruptionBudget weir", "Service shop",
	} {
		if _, ok := all[want]; !ok {
			t.Errorf("no %s", want)
		}
	}
	pod := all["Deployment weir"].Spec.Template.Spec
	if len(pod.Containers) != 1 {
		t.Fatalf("%d containers", len(pod.Containers))
	}
	c := pod.Containers[0]

	// The configuration, as the container finds it.
	dir := t.TempDir()
	ca := weirtest.NewAuthority(t)
	cert, _ := ca.Write(dir, "tls", ca.Issue("shop.example.com"))
	appendFile(t, cert, ca.WritePool(dir)) // a chain, as it should be
	text := strings.ReplaceAll(all["ConfigMap weir"].Data["weir.yaml"], "/etc/weir-tls/", dir+"/")
	text = strings.ReplaceAll(text, "/var/lib/weir/", dir+"/")
	file := filepath.Join(dir, "weir.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	plan, err := config.Load(file)
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(binary, "check", "--strict", "-c", file).CombinedOutput(); err != nil || !strings.Contains(string(out), "fine") || strings.Contains(string(out), "note:") {
		t.Errorf("weir check --strict: %v\n%s", err, out)
	}

	if got := c.Args[len(c.Args)-1]; got != "/etc/weir/weir.yaml" || c.Args[0] != "run" {
		t.Errorf("arguments %q", c.Args)
	}
	volumes := map[string]string{}
	for _, v := range pod.Volumes {
		volumes[v.Name] = v.ConfigMap.Name + v.Secret.SecretName
	}
	mounted := map[string]string{}
	for _, m := range c.Mounts {
		if _, ok := volumes[m.Name]; !ok || m.SubPath != "" {
			t.Errorf("mount %+v", m)
		}
		mounted[m.MountPath] = volumes[m.Name]
	}
	if mounted["/etc/weir"] != "weir" || mounted["/etc/weir-tls"] != "weir-tls" {
		t.Errorf("mounted is %v", mounted)
	}

	ports := map[string]int{}
	for _, p := range c.Ports {
		ports[p.Name] = p.Port
	}
	for name, bind := range map[string]string{
		"http": plan.Listener("plain").Bind[0], "https": plan.Listener("secure").Bind[0], "status": plan.Status.Bind,
	} {
		if bind != fmt.Sprintf(":%d", ports[name]) {
			t.Errorf("port %s is %d, the configuration has %s", name, ports[name], bind)
		}
	}
	for name, p := range map[string]probe{"/readyz startup": c.Startup, "/readyz readiness": c.Readiness, "/livez liveness": c.Liveness} {
		if path, _, _ := strings.Cut(name, " "); p.Get.Path != path || p.Get.Port != "status" || p.Period == 0 {
			t.Errorf("%s: %+v", name, p)
		}
	}
	if c.Lifecycle != nil {
		t.Error("shutdown.delay does what a preStop hook would")
	}
	labels := all["Deployment weir"].Spec.Template.Metadata.Labels
	for _, s := range []map[string]any{all["Service weir"].Spec.Selector, all["Deployment weir"].Spec.Selector["matchLabels"].(map[string]any),
		all["PodDisruptionBudget weir"].Spec.Selector["matchLabels"].(map[string]any)} {
		for k, v := range s {
			if labels[k] != v {
				t.Errorf("%s: %v selects no pod with %v", k, v, labels)
			}
		}
	}
	for _, p := range all["Service weir"].Spec.Ports {
		if ports[fmt.Sprint(p["targetPort"])] == 0 {
			t.Errorf("port %v leads nowhere", p)
		}
	}

	// Times: readiness is lost before accepting ends, the drain before the kill.
	down := plan.Shutdown
	if seconds := int(down.Deadline.Seconds()); pod.Grace < seconds+2 {
		t.Errorf("grace %ds, deadline %ds", pod.Grace, seconds)
	}
	if plan.Check.Grace.Seconds() != float64(pod.Grace) {
		t.Errorf("check.grace is %s, the pod's %ds", plan.Check.Grace, pod.Grace)
	}
	if lost := c.Readiness.Period * c.Readiness.Threshold; float64(lost) >= down.Delay.Seconds() {
		t.Errorf("readiness is lost after %ds, accepting ends after %s", lost, down.Delay)
	}

	// The application's service is the one that is asked for.
	shop := all["Service shop"]
	if shop.Spec.ClusterIP != "None" || !strings.Contains(text, fmt.Sprintf("{name: %s.%s.svc.cluster.local., port: %v}", shop.Metadata.Name, shop.Metadata.Namespace, shop.Spec.Ports[0]["port"])) {
		t.Errorf("service shop: %+v", shop)
	}
}

// What docs/kubernetes.md quotes is in the manifest, and its configurations pass.
func TestKubernetesDocument(t *testing.T) {
	text, err := os.ReadFile("../docs/kubernetes.md")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "weir.yaml")
	configurations := 0
	for _, block := range regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(string(text), -1) {
		var any map[string]any
		if err := yaml.Unmarshal([]byte(block[1]), &any); err != nil {
			t.Errorf("%v\n%s", err, block[1])
		}
		if _, is := any["pools"]; !is {
			continue
		}
		configurations++
		if err := os.WriteFile(file, []byte(block[1]), 0o600); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command(binary, "check", "--strict", "-c", file).CombinedOutput(); err != nil {
			t.Errorf("%v\n%s\n%s", err, out, block[1])
		}
	}
	if configurations < 2 {
		t.Errorf("%d configurations", configurations)
	}
	m, err := os.ReadFile(manifest)
	if err != nil {
		t.Fatal(err)
	}
	// The drawing's numbers are the manifest's.
	drawn := regexp.MustCompile(`delay \((\d+s)\) +deadline \((\d+s)\) +grace \((\d+)s\)`).FindStringSubmatch(string(text))
	if drawn == nil {
		t.Fatal("no drawing of a stop")
	}
	for _, want := range []string{fmt.Sprintf("shutdown: {delay: %s, deadline: %s}", drawn[1], drawn[2]), "terminationGracePeriodSeconds: " + drawn[3]} {
		if !strings.Contains(string(m), want) {
			t.Errorf("the manifest has no %q", want)
		}
	}
}

// appendFile appends one file to another.
func appendFile(t *testing.T, to, from string) {
	t.Helper()
	text, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(to, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Write(text); err != nil {
		t.Fatal(err)
	}
}
