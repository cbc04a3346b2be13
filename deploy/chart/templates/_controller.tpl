{{/* The flags of the controller. Input: root, base (flags). Output: flags. */}}
{{- define "epilogue.controllerFlags" -}}
{{- $controller := .root.Values.controller -}}
{{- $flags := list -}}
{{- $metrics := print "127.0.0.1:" $controller.ports.admin -}}
{{- $probes := print "address=:" $controller.ports.probes -}}
{{- range .base -}}
{{- $flag := replace "127.0.0.1:8080" $metrics . | replace "address=:8081" $probes -}}
{{- $flags = append $flags $flag -}}
{{- end -}}
{{- if $controller.manageAllJobs -}}{{- $flags = append $flags "--manage-all-jobs" -}}{{- end -}}
{{- with $controller.namespace -}}{{- $flags = append $flags (print "--namespace=" .) -}}{{- end -}}
{{- /* The mode, which the environment has, makes pod GC observe at most. */ -}}
{{- $acts := eq .root.Values.mode "enforce" -}}
{{- if and (ne $controller.podGC "alongside") (or $acts (eq $controller.podGC "off")) -}}
{{- $flags = append $flags (print "--pod-gc=" $controller.podGC) -}}
{{- end -}}
{{- if .root.Values.scraping.enabled -}}
{{- $flags = append $flags (print "--scrape-bind-address=:" $controller.ports.metrics) -}}
{{- end -}}
{{- dict "flags" (concat $flags $controller.extraArgs) | toYaml -}}
{{- end -}}

{{/* The Deployment. */}}
{{- define "epilogue.controller" -}}
{{- $text := include "epilogue.text" (dict "root" . "path" "common/controller/deployment.yaml") -}}
{{- $deployment := fromYaml $text -}}
{{- $pod := $deployment.spec.template.spec -}}
{{- $container := index $pod.containers 0 -}}
{{- $values := .Values.controller -}}
{{- $settings := merge (dict "mode" .Values.mode) $values -}}
{{- include "epilogue.setPod" (dict "root" . "workload" $deployment "settings" $settings) -}}
{{- $_ := set $deployment.spec "replicas" $values.replicas -}}
{{- with $values.strategy -}}{{- $_ := set $deployment.spec "strategy" . -}}{{- end -}}
{{- with $values.affinity -}}{{- $_ := set $pod "affinity" . -}}{{- end -}}
{{- with $values.tolerations -}}{{- $_ := set $pod "tolerations" . -}}{{- end -}}
{{- $own := dict "labelSelector" (first $pod.topologySpreadConstraints).labelSelector -}}
{{- $spread := list -}}
{{- range $values.topologySpreadConstraints -}}
{{- /* Not merged: a selector of the values stands alone. */ -}}
{{- $with := dict -}}
{{- if not (hasKey . "labelSelector") -}}{{- $with = $own -}}{{- end -}}
{{- $spread = append $spread (merge (dict) . $with) -}}
{{- end -}}
{{- $_ := set $pod "topologySpreadConstraints" $spread -}}
{{- $input := dict "root" . "base" $container.args -}}
{{- $_ := set $container "args" (include "epilogue.controllerFlags" $input | fromYaml).flags -}}
{{- $_ := set (first $container.ports) "containerPort" $values.ports.probes -}}
{{- if .Values.scraping.enabled -}}
{{- $metrics := $values.ports.metrics -}}
{{- $port := dict "name" "metrics" "containerPort" $metrics "protocol" "TCP" -}}
{{- $_ := set $container "ports" (append $container.ports $port) -}}
{{- end -}}
{{- include "epilogue.object" (dict "root" . "object" $deployment) -}}
{{- end -}}
