{{/*
The flags of tasks, where they differ from the agent's own defaults. The mode, which the environment
has, makes each task observe at most: so `observe` leaves only what is off. Input: mode, pressure,
stuckPods. Output: flags.
*/}}
{{- define "epilogue.modeFlags" -}}
{{- $flags := list -}}
{{- $acts := eq .mode "enforce" -}}
{{- if and (ne .pressure "observe") (or $acts (eq .pressure "off")) -}}
{{- $flags = append $flags (print "--pressure=" .pressure) -}}
{{- end -}}
{{- if and (ne .stuckPods "enforce") (or $acts (eq .stuckPods "off")) -}}
{{- $flags = append $flags (print "--stuck-pods=" .stuckPods) -}}
{{- end -}}
{{- dict "flags" $flags | toYaml -}}
{{- end -}}

{{/* Which modes the agents have: each has an account of its own. Input: root. */}}
{{- define "epilogue.agentModes" -}}
{{- $modes := list -}}
{{- if .Values.agent.leave -}}
{{- /* What an agent that acts left takes its rights to remove. */ -}}
{{- $modes = list "enforce" -}}
{{- else -}}
{{- $modes = list .Values.mode -}}
{{- range .Values.agent.pools -}}
{{- $modes = append $modes (.mode | default $.Values.mode) -}}
{{- end -}}
{{- end -}}
{{- dict "modes" (uniq $modes) | toYaml -}}
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

{{/*
The values of one DaemonSet: a pool's stand in place of those of all agents, but selectors and flags
add up. Input: root, pool. Output: those values.
*/}}
{{- define "epilogue.settings" -}}
{{- $agent := .root.Values.agent -}}
{{- $settings := merge (dict "mode" .root.Values.mode) (omit $agent "pools") -}}
{{- range $key, $value := .pool -}}{{- $_ := set $settings $key $value -}}{{- end -}}
{{- $selector := merge (dict) (.pool.nodeSelector | default dict) $agent.nodeSelector -}}
{{- $_ := set $settings "nodeSelector" $selector -}}
{{- $flags := concat $agent.extraArgs (.pool.extraArgs | default list) -}}
{{- $_ := set $settings "extraArgs" $flags -}}
{{- toYaml $settings -}}
{{- end -}}

{{/* The flags of `run`. Input: root, settings, base (flags), paths. Output: flags. */}}
{{- define "epilogue.agentFlags" -}}
{{- $agent := .settings -}}
{{- $flags := list -}}
{{- $admin := print "127.0.0.1:" $agent.ports.admin -}}
{{- range .base -}}{{- $flags = append $flags (replace "127.0.0.1:9465" $admin .) -}}{{- end -}}
{{- with .paths.kubeletUnit -}}{{- $flags = append $flags (print "--kubelet-unit=" .) -}}{{- end -}}
{{- if ne .paths.kubeletRootDir "/var/lib/kubelet" -}}
{{- $flags = append $flags (print "--kubelet-root-dir=" .paths.kubeletRootDir) -}}
{{- end -}}
{{- with eq $agent.mode "enforce" | ternary $agent.runtimeEndpoint "" -}}
{{- $flags = append $flags (print "--runtime-endpoint=" .) -}}
{{- end -}}
{{- if not $agent.logind -}}{{- $flags = append $flags "--logind=false" -}}{{- end -}}
{{- if .root.Values.scraping.enabled -}}
{{- $flags = append $flags (print "--scrape-bind-address=:" $agent.ports.metrics) -}}
{{- end -}}
{{- $flags = concat $flags (include "epilogue.modeFlags" $agent | fromYaml).flags -}}
{{- dict "flags" (concat $flags ($agent.extraArgs | default list)) | toYaml -}}
{{- end -}}

{{/*
Node selector terms that select no node of the other pools. A node is outside of a pool if one of
the pool's labels differs, and terms are alternatives: so each pool multiplies the terms by its
labels. Input: terms, others (pools). Output: terms.
*/}}
{{- define "epilogue.nodeTerms" -}}
{{- $terms := .terms -}}
{{- range $pool := .others -}}
{{- $next := list -}}
{{- range $term := $terms -}}
{{- range $key, $value := $pool.nodeSelector -}}
{{- $differs := dict "key" $key "operator" "NotIn" "values" (list $value) -}}
{{- $expressions := append $term.matchExpressions $differs -}}
{{- $next = append $next (merge (dict "matchExpressions" $expressions) $term) -}}
{{- end -}}
{{- end -}}
{{- $terms = $next -}}
{{- end -}}
{{- dict "terms" $terms | toYaml -}}
{{- end -}}

{{/*
Sets which nodes get the pod: of those that the affinity of the values selects, the ones without a
service of the host. Input: pod, settings, others.
*/}}
{{- define "epilogue.setNodes" -}}
{{- $required := "requiredDuringSchedulingIgnoredDuringExecution" -}}
{{- $terms := (get .pod.affinity.nodeAffinity $required).nodeSelectorTerms -}}
{{- $base := (first $terms).matchExpressions -}}
{{- $affinity := .settings.affinity -}}
{{- $ofNodes := $affinity.nodeAffinity | default dict -}}
{{- with (get $ofNodes $required | default dict).nodeSelectorTerms -}}
{{- $terms = list -}}
{{- range . -}}
{{- $all := concat $base (.matchExpressions | default list) -}}
{{- $terms = append $terms (merge (dict "matchExpressions" $all) .) -}}
{{- end -}}
{{- end -}}
{{- $input := dict "terms" $terms "others" .others -}}
{{- $terms = (include "epilogue.nodeTerms" $input | fromYaml).terms -}}
{{- $_ := set $ofNodes $required (dict "nodeSelectorTerms" $terms) -}}
{{- $_ := set $affinity "nodeAffinity" $ofNodes -}}
{{- $_ := set .pod "affinity" $affinity -}}
{{- $_ := set .pod "tolerations" .settings.tolerations -}}
{{- end -}}

{{/*
Sets the host's directories: each is mounted under /host. Without `pressure` the agent reads the
cgroups and sets no trigger, measures no disk, and needs no capability. One that observes needs none
either, and has no socket of a runtime and nothing that it could write. Input: pod, settings, paths.
*/}}
{{- define "epilogue.setDirectories" -}}
{{- $container := index .pod.containers 0 -}}
{{- $directories := dict
      "containerd" .paths.runtimeSocketDir
      "containerd-images" .paths.runtimeDataDir
      "kubelet" .paths.kubeletRootDir -}}
{{- $without := .settings.logind | ternary list (list "bus" "logind-conf") -}}
{{- $off := eq .settings.pressure "off" -}}
{{- if $off -}}
{{- $without = concat $without (list "logs" "containerd-images" "crio-images") -}}
{{- end -}}
{{- $observes := eq .settings.mode "observe" -}}
{{- if $observes -}}
{{- $without = concat $without (list "containerd" "crio" "journal") -}}
{{- end -}}
{{- if or $off $observes -}}
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
{{- $reads := list -}}
{{- if $off -}}{{- $reads = list "cgroup" -}}{{- end -}}
{{- if $observes -}}{{- $reads = list "cgroup" "logind-conf" -}}{{- end -}}
{{- if has .name $reads -}}{{- $_ := set . "readOnly" true -}}{{- end -}}
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
{{- $all := dict "type" "RollingUpdate" "rollingUpdate" (dict "maxUnavailable" "100%") -}}
{{- $_ := set .set.spec "updateStrategy" $all -}}
{{- end -}}

{{/*
A DaemonSet of agents. Input: root, pool (empty for the default one), others (pools), and
annotations, which make it a hook that runs `leave`.
*/}}
{{- define "epilogue.agent" -}}
{{- $text := include "epilogue.text" (dict "root" .root "path" "common/agent/daemon-set.yaml") -}}
{{- $set := fromYaml $text -}}
{{- $pod := $set.spec.template.spec -}}
{{- $container := index $pod.containers 0 -}}
{{- $paths := include "epilogue.paths" .root | fromYaml -}}
{{- $settings := include "epilogue.settings" . | fromYaml -}}
{{- if or .annotations .root.Values.agent.leave -}}
{{- $_ := set $settings "mode" "enforce" -}}
{{- end -}}
{{- include "epilogue.setPod" (dict "root" .root "workload" $set "settings" $settings) -}}
{{- include "epilogue.setNodes" (dict "pod" $pod "settings" $settings "others" .others) -}}
{{- include "epilogue.setDirectories" (dict "pod" $pod "settings" $settings "paths" $paths) -}}
{{- $strategy := $settings.updateStrategy -}}
{{- if eq $strategy.type "OnDelete" -}}{{- $strategy = omit $strategy "rollingUpdate" -}}{{- end -}}
{{- $_ := set $set.spec "updateStrategy" $strategy -}}
{{- if .pool -}}{{- include "epilogue.setPool" (dict "set" $set "pool" .pool) -}}{{- end -}}
{{- if .annotations -}}{{- $_ := set $set.metadata "annotations" .annotations -}}{{- end -}}
{{- $admin := first $container.ports -}}
{{- $_ := set $admin "containerPort" $settings.ports.admin -}}
{{- $_ := set $admin "hostPort" $settings.ports.admin -}}
{{- if or .annotations .root.Values.agent.leave -}}
{{- include "epilogue.setLeave" (dict "set" $set "pod" $pod "container" $container) -}}
{{- else -}}
{{- $input := dict "root" .root "settings" $settings "base" $container.args "paths" $paths -}}
{{- $_ := set $container "args" (include "epilogue.agentFlags" $input | fromYaml).flags -}}
{{- if .root.Values.scraping.enabled -}}
{{- $metrics := $settings.ports.metrics -}}
{{- $port := dict "name" "metrics" "containerPort" $metrics "hostPort" $metrics "protocol" "TCP" -}}
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
