{{/*
The flags of a mode. `observe` makes each task observe at most. `enforce` writes only what differs
from the agent's own defaults. Input: mode, pressure, stuckPods. Output: flags.
*/}}
{{- define "epilogue.modeFlags" -}}
{{- $flags := list -}}
{{- $pressure := .pressure -}}
{{- $stuckPods := .stuckPods -}}
{{- if eq .mode "observe" -}}
{{- $pressure = eq $pressure "off" | ternary "off" "observe" -}}
{{- $stuckPods = eq $stuckPods "off" | ternary "off" "observe" -}}
{{- $flags = append $flags "--shutdown=observe" -}}
{{- end -}}
{{- if or (eq .mode "observe") (ne $pressure "observe") -}}
{{- $flags = append $flags (print "--pressure=" $pressure) -}}
{{- end -}}
{{- if or (eq .mode "observe") (ne $stuckPods "enforce") -}}
{{- $flags = append $flags (print "--stuck-pods=" $stuckPods) -}}
{{- end -}}
{{- dict "flags" $flags | toYaml -}}
{{- end -}}

{{/* Directories and unit: the values, else the platform's. */}}
{{- define "epilogue.paths" -}}
{{- $platforms := .Files.Get "platforms.yaml" | fromYaml -}}
{{- $paths := get $platforms (.Values.platform | default "generic") -}}
{{- range $key := keys $paths -}}
{{- with get $.Values.agent $key -}}{{- $_ := set $paths $key . -}}{{- end -}}
{{- end -}}
{{- toYaml $paths -}}
{{- end -}}

{{/* The flags of `run`. Input: root, pool, base (flags), paths. Output: flags. */}}
{{- define "epilogue.agentFlags" -}}
{{- $agent := .root.Values.agent -}}
{{- $flags := .base -}}
{{- with .paths.kubeletUnit -}}{{- $flags = append $flags (print "--kubelet-unit=" .) -}}{{- end -}}
{{- if ne .paths.kubeletRootDir "/var/lib/kubelet" -}}
{{- $flags = append $flags (print "--kubelet-root-dir=" .paths.kubeletRootDir) -}}
{{- end -}}
{{- with $agent.runtimeEndpoint -}}
{{- $flags = append $flags (print "--runtime-endpoint=" .) -}}
{{- end -}}
{{- if not $agent.logind -}}{{- $flags = append $flags "--logind=false" -}}{{- end -}}
{{- if .root.Values.scraping.enabled -}}
{{- $flags = append $flags "--scrape-bind-address=:9466" -}}
{{- end -}}
{{- $default := dict "mode" .root.Values.mode -}}
{{- $wanted := merge (dict) .pool $default (pick $agent "pressure" "stuckPods") -}}
{{- $flags = concat $flags (include "epilogue.modeFlags" $wanted | fromYaml).flags -}}
{{- $flags = concat $flags $agent.extraArgs (.pool.extraArgs | default list) -}}
{{- dict "flags" $flags | toYaml -}}
{{- end -}}

{{/*
Node selector terms with these expressions that select no node of the other pools. A node is
outside of a pool if one of the pool's labels differs, and terms are alternatives: so each pool
multiplies the terms by its labels. Input: expressions, others (pools). Output: terms.
*/}}
{{- define "epilogue.nodeTerms" -}}
{{- $terms := list .expressions -}}
{{- range $pool := .others -}}
{{- $next := list -}}
{{- range $expressions := $terms -}}
{{- range $key, $value := $pool.nodeSelector -}}
{{- $differs := dict "key" $key "operator" "NotIn" "values" (list $value) -}}
{{- $next = append $next (append $expressions $differs) -}}
{{- end -}}
{{- end -}}
{{- $terms = $next -}}
{{- end -}}
{{- $all := list -}}
{{- range $terms -}}{{- $all = append $all (dict "matchExpressions" .) -}}{{- end -}}
{{- dict "terms" $all | toYaml -}}
{{- end -}}

{{/* Sets which nodes get the pod. Input: root, pod, pool, others. */}}
{{- define "epilogue.setNodes" -}}
{{- $agent := .root.Values.agent -}}
{{- $required := .pod.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution -}}
{{- $base := (index $required.nodeSelectorTerms 0).matchExpressions -}}
{{- $input := dict "expressions" (concat $base $agent.affinity) "others" .others -}}
{{- $terms := (include "epilogue.nodeTerms" $input | fromYaml).terms -}}
{{- $_ := set $required "nodeSelectorTerms" $terms -}}
{{- $labels := merge (dict) (.pool.nodeSelector | default dict) $agent.nodeSelector -}}
{{- if $labels -}}{{- $_ := set .pod "nodeSelector" $labels -}}{{- end -}}
{{- $_ := set .pod "tolerations" $agent.tolerations -}}
{{- end -}}

{{/*
Sets the host's directories: each is mounted under /host. Without `pressure` the agent reads the
cgroups and sets no trigger, measures no disk, and needs no capability. Input: root, pod, pool,
paths.
*/}}
{{- define "epilogue.setDirectories" -}}
{{- $container := index .pod.containers 0 -}}
{{- $directories := dict
      "containerd" .paths.runtimeSocketDir
      "containerd-images" .paths.runtimeDataDir
      "kubelet" .paths.kubeletRootDir -}}
{{- $without := .root.Values.agent.logind | ternary list (list "bus" "logind-conf") -}}
{{- $off := eq (merge (dict) .pool (pick .root.Values.agent "pressure")).pressure "off" -}}
{{- if $off -}}
{{- $without = concat $without (list "logs" "containerd-images" "crio-images") -}}
{{- $_ := unset $container.securityContext.capabilities "add" -}}
{{- end -}}
{{- $volumes := list -}}
{{- range .pod.volumes -}}
{{- if not (has .name $without) -}}
{{- if hasKey $directories .name -}}
{{- $_ := set .hostPath "path" (get $directories .name) -}}
{{- end -}}
{{- $volumes = append $volumes . -}}
{{- end -}}
{{- end -}}
{{- $mounts := list -}}
{{- range $container.volumeMounts -}}
{{- if not (has .name $without) -}}
{{- if hasKey $directories .name -}}
{{- $_ := set . "mountPath" (print "/host" (get $directories .name)) -}}
{{- end -}}
{{- if and $off (eq .name "cgroup") -}}{{- $_ := set . "readOnly" true -}}{{- end -}}
{{- $mounts = append $mounts . -}}
{{- end -}}
{{- end -}}
{{- $_ := set .pod "volumes" $volumes -}}
{{- $_ := set $container "volumeMounts" $mounts -}}
{{- end -}}

{{/*
Names a pool's DaemonSet, and gives it labels that select its pods only. The default DaemonSet's
selector is immutable and selects them, too; it manages only pods that it owns. Input: set, pool.
*/}}
{{- define "epilogue.setPool" -}}
{{- $_ := set .set.metadata "name" (print "epilogue-agent-" .pool.name) -}}
{{- $template := .set.spec.template -}}
{{- range list .set.metadata.labels .set.spec.selector.matchLabels $template.metadata.labels -}}
{{- $_ := set . "epilogue.dev/pool" $.pool.name -}}
{{- end -}}
{{- end -}}

{{/*
Makes the agent's pod run `leave`. The pod is Ready once the init container has removed everything
of the agent's on its node. Then the container waits, because a pod of a DaemonSet must not exit.
Its message says why `leave` failed. Input: set, pod, container.
*/}}
{{- define "epilogue.setLeave" -}}
{{- $_ := unset .container "readinessProbe" -}}
{{- $_ := set .container "terminationMessagePolicy" "FallbackToLogsOnError" -}}
{{- $first := omit .container "ports" | deepCopy -}}
{{- $_ := set $first "name" "leave" -}}
{{- $_ := set $first "args" (list "leave" "--root=/host") -}}
{{- $_ := set .pod "initContainers" (list $first) -}}
{{- $_ := set .container "args" (list "leave" "--root=/host" "--wait") -}}
{{- $_ := set .set.spec.updateStrategy.rollingUpdate "maxUnavailable" "100%" -}}
{{- end -}}

{{/*
A DaemonSet of agents. Input: root, pool (empty for the default one), others (pools), and
annotations, which make it a hook that runs `leave`.
*/}}
{{- define "epilogue.agent" -}}
{{- $text := include "epilogue.text" (dict "root" .root "path" "base/agent/daemon-set.yaml") -}}
{{- $set := fromYaml $text -}}
{{- $pod := $set.spec.template.spec -}}
{{- $container := index $pod.containers 0 -}}
{{- $paths := include "epilogue.paths" .root | fromYaml -}}
{{- include "epilogue.setPod" (dict "root" .root "pod" $pod "settings" .root.Values.agent) -}}
{{- include "epilogue.setNodes" (dict "root" .root "pod" $pod "pool" .pool "others" .others) -}}
{{- $places := dict "root" .root "pod" $pod "pool" .pool "paths" $paths -}}
{{- include "epilogue.setDirectories" $places -}}
{{- if .pool -}}{{- include "epilogue.setPool" (dict "set" $set "pool" .pool) -}}{{- end -}}
{{- if .annotations -}}{{- $_ := set $set.metadata "annotations" .annotations -}}{{- end -}}
{{- if or .annotations .root.Values.agent.leave -}}
{{- include "epilogue.setLeave" (dict "set" $set "pod" $pod "container" $container) -}}
{{- else -}}
{{- $input := dict "root" .root "pool" .pool "base" $container.args "paths" $paths -}}
{{- $_ := set $container "args" (include "epilogue.agentFlags" $input | fromYaml).flags -}}
{{- if .root.Values.scraping.enabled -}}
{{- $port := dict "name" "metrics" "containerPort" 9466 "hostPort" 9466 "protocol" "TCP" -}}
{{- $_ := set $container "ports" (append $container.ports $port) -}}
{{- end -}}
{{- end -}}
{{- include "epilogue.object" (dict "root" .root "object" $set) -}}
{{- end -}}

{{/* All DaemonSets. Input: root, and annotations as above. */}}
{{- define "epilogue.agents" -}}
{{- /* The default agents exclude the nodes of all pools, a pool those of earlier pools. */ -}}
{{- $pools := .root.Values.agent.pools -}}
{{- $input := dict "root" .root "annotations" .annotations -}}
{{- include "epilogue.agent" (merge (dict "pool" (dict) "others" $pools) $input) -}}
{{- range $index, $pool := $pools -}}
{{- include "epilogue.agent" (merge (dict "pool" $pool "others" (slice $pools 0 $index)) $input) -}}
{{- end -}}
{{- end -}}
