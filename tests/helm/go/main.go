// Lints and renders a chart as `helm lint --strict` and `helm template` do, with Helm's own packages, and reads what was rendered as
// the API server of Kubernetes does: with its types, where an unknown field is an error.
//
//	chart lint DIR VALUES...
//	chart template DIR RELEASE VALUES...
//
// The second prints JSON: the manifests and the notes. What is refused goes to standard error, and the exit code is 1.
package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path"
	"slices"
	"strings"

	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"
	apps "k8s.io/api/apps/v1"
	autoscaling "k8s.io/api/autoscaling/v2"
	core "k8s.io/api/core/v1"
	policy "k8s.io/api/policy/v1"
	"sigs.k8s.io/yaml"
)

const kubernetes = "v1.34.0"

// What the chart may consist of. A ServiceMonitor is of Prometheus' operator, whose types are not here.
var kinds = map[string]func() any{
	"v1/Secret":                               func() any { return new(core.Secret) },
	"v1/Service":                              func() any { return new(core.Service) },
	"apps/v1/StatefulSet":                     func() any { return new(apps.StatefulSet) },
	"policy/v1/PodDisruptionBudget":           func() any { return new(policy.PodDisruptionBudget) },
	"autoscaling/v2/HorizontalPodAutoscaler":  func() any { return new(autoscaling.HorizontalPodAutoscaler) },
	"monitoring.coreos.com/v1/ServiceMonitor": func() any { return new(map[string]any) },
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(arguments []string) error {
	version, err := chartutil.ParseKubeVersion(kubernetes)
	if err != nil {
		return err
	}
	switch {
	case len(arguments) >= 2 && arguments[0] == "lint":
		values, err := read(arguments[2:])
		if err != nil {
			return err
		}
		return judge(lint.AllWithKubeVersion(arguments[1], values, "default", version).Messages)
	case len(arguments) >= 3 && arguments[0] == "template":
		values, err := read(arguments[3:])
		if err != nil {
			return err
		}
		return render(arguments[1], arguments[2], values, version)
	}
	return fmt.Errorf("usage: chart lint DIR VALUES... | chart template DIR RELEASE VALUES...")
}

func judge(messages []support.Message) error {
	var wrong []string
	for _, message := range messages {
		fmt.Println(message)
		if message.Severity >= support.WarningSev {
			wrong = append(wrong, message.Error())
		}
	}
	if len(wrong) > 0 {
		return fmt.Errorf("%s", strings.Join(wrong, "\n"))
	}
	return nil
}

// Values of several files, a later one over an earlier one.
func read(files []string) (map[string]any, error) {
	values := map[string]any{}
	for _, file := range files {
		next, err := chartutil.ReadValuesFile(file)
		if err != nil {
			return nil, err
		}
		values = chartutil.MergeTables(next, values)
	}
	return values, nil
}

func render(directory, release string, values map[string]any, version *chartutil.KubeVersion) error {
	chart, err := loader.Load(directory)
	if err != nil {
		return err
	}
	capabilities := chartutil.DefaultCapabilities.Copy()
	capabilities.KubeVersion = *version
	if wanted := chart.Metadata.KubeVersion; !chartutil.IsCompatibleRange(wanted, version.Version) {
		return fmt.Errorf("the chart is for Kubernetes %s", wanted)
	}
	options := chartutil.ReleaseOptions{Name: release, Namespace: "push", Revision: 1, IsInstall: true}
	all, err := chartutil.ToRenderValues(chart, values, options, capabilities)
	if err != nil {
		return err
	}
	files, err := engine.Render(chart, all)
	if err != nil {
		return err
	}
	answer := struct {
		Manifests []any  `json:"manifests"`
		Notes     string `json:"notes"`
	}{}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		text := files[name]
		switch {
		case path.Base(name) == "NOTES.txt":
			answer.Notes = text
		case strings.HasSuffix(name, ".yaml"):
			for _, document := range strings.Split("\n"+text, "\n---") {
				manifest, err := decode(document)
				if err != nil {
					return fmt.Errorf("%s: %w\n%s", name, err, document)
				}
				if manifest != nil {
					answer.Manifests = append(answer.Manifests, manifest)
				}
			}
		}
	}
	return json.NewEncoder(os.Stdout).Encode(answer)
}

func decode(document string) (any, error) {
	var head struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
	}
	if err := yaml.Unmarshal([]byte(document), &head); err != nil {
		return nil, err
	}
	if head.Kind == "" {
		return nil, nil
	}
	make, isKnown := kinds[head.APIVersion+"/"+head.Kind]
	if !isKnown {
		return nil, fmt.Errorf("%s/%s is not what the chart may consist of", head.APIVersion, head.Kind)
	}
	manifest := make()
	return manifest, yaml.UnmarshalStrict([]byte(document), manifest)
}
