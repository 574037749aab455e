{{/* Names, labels, images, flags and pods that several templates share. */}}

{{- define "canopy.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 46 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 46 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 46 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Takes a dict of root and component. */}}
{{- define "canopy.selector" -}}
app.kubernetes.io/name: {{ .root.Chart.Name }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "canopy.labels" -}}
{{ include "canopy.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end -}}

{{- define "canopy.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "canopy.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* Takes a dict of root and image. */}}
{{- define "canopy.image" -}}
{{- if .image.digest -}}
{{- printf "%s@%s" .image.repository .image.digest -}}
{{- else -}}
{{- printf "%s:%s" .image.repository (default .root.Chart.AppVersion .image.tag) -}}
{{- end -}}
{{- end -}}

{{- define "canopy.adminSecret" -}}
{{- default (printf "%s-admin" (include "canopy.fullname" .)) .Values.security.restricted.existingSecret -}}
{{- end -}}

{{- define "canopy.milvusUri" -}}
{{- if .Values.retrieval.milvusUri -}}
{{- .Values.retrieval.milvusUri -}}
{{- else -}}
{{- printf "http://%s-milvus:19530" .Release.Name -}}
{{- end -}}
{{- end -}}

{{- define "canopy.tracingPort" -}}
{{- regexFind ":[0-9]+(/|$)" .Values.tracing.url | trimAll ":/" | default "4318" -}}
{{- end -}}

{{/* Rules between values, which a schema cannot say. */}}
{{- define "canopy.validate" -}}
{{- $values := .Values -}}
{{- if and (eq $values.evidence.profile "tensorrt") (not $values.evidence.gpu.enabled) -}}
{{- fail "evidence.profile=tensorrt needs a GPU: set evidence.gpu.enabled=true" -}}
{{- end -}}
{{- if and (eq $values.evidence.profile "tensorrt") (not $values.evidence.plan.enabled) (not $values.evidence.modelRepository.existingClaim) -}}
{{- fail "evidence.profile=tensorrt needs plans: set evidence.plan.enabled=true, or evidence.modelRepository.existingClaim to a repository that has them" -}}
{{- end -}}
{{- if and $values.evidence.plan.enabled (ne $values.evidence.profile "tensorrt") -}}
{{- fail (printf "evidence.plan.enabled=true builds plans that evidence.profile=%s does not load: set evidence.profile=tensorrt" $values.evidence.profile) -}}
{{- end -}}
{{- if and $values.evidence.pixels.enabled (has "--load-model=vision_encoder" $values.evidence.extraArguments) -}}
{{- fail "evidence.pixels.enabled=true loads the vision tower: leave --load-model=vision_encoder out of evidence.extraArguments" -}}
{{- end -}}
{{- if and (eq $values.evidence.autoscaling.kind "keda") (not $values.evidence.autoscaling.prometheusUrl) (gt (float64 $values.evidence.autoscaling.queueRatio) 0.0) -}}
{{- fail "evidence.autoscaling.kind=keda with queueRatio needs evidence.autoscaling.prometheusUrl" -}}
{{- end -}}
{{- if and (ne $values.evidence.autoscaling.kind "none") (eq (float64 $values.evidence.autoscaling.queueRatio) 0.0) (eq (int $values.evidence.autoscaling.cpuPercent) 0) -}}
{{- fail "evidence.autoscaling needs a metric: set cpuPercent or queueRatio above 0" -}}
{{- end -}}
{{- if gt (int $values.evidence.autoscaling.minReplicas) (int $values.evidence.autoscaling.maxReplicas) -}}
{{- fail "evidence.autoscaling.minReplicas is above maxReplicas" -}}
{{- end -}}
{{- if and $values.critic.enabled (not $values.critic.model.existingClaim) -}}
{{- fail "critic.enabled=true needs critic.model.existingClaim: a claim with the model's weights" -}}
{{- end -}}
{{- if and $values.security.tls.enabled (not $values.security.tls.existingSecret) -}}
{{- fail "security.tls.enabled=true needs security.tls.existingSecret: a secret with tls.crt and tls.key" -}}
{{- end -}}
{{- if and $values.security.tls.mutual (not $values.security.tls.enabled) -}}
{{- fail "security.tls.mutual=true needs security.tls.enabled=true" -}}
{{- end -}}
{{- if or $values.ingest.job.enabled $values.ingest.cronJob.enabled -}}
{{- if not $values.ingest.existingClaim -}}
{{- fail "ingest needs ingest.existingClaim: a claim with the folders shard-0, shard-1, ..." -}}
{{- end -}}
{{- if not (or $values.milvus.enabled $values.retrieval.milvusUri) -}}
{{- fail "ingest needs a Milvus: set retrieval.milvusUri, or milvus.enabled=true" -}}
{{- end -}}
{{- end -}}
{{- if and $values.tracing.enabled (not $values.tracing.url) -}}
{{- fail "tracing.enabled=true needs tracing.url" -}}
{{- end -}}
{{- range $name := list "evidence" "critic" -}}
{{- $server := index $values $name -}}
{{- range $probe := list "startup" "readiness" "liveness" -}}
{{- if le (int (index $server.probes $probe).timeoutSeconds) (int $server.probes.inferenceSeconds) -}}
{{- fail (printf "%s.probes.%s.timeoutSeconds must be above %s.probes.inferenceSeconds: the command has to start too" $name $probe $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "canopy.podSecurity" -}}
runAsNonRoot: true
runAsUser: {{ .Values.security.user }}
runAsGroup: {{ .Values.security.user }}
fsGroup: {{ .Values.security.user }}
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "canopy.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
capabilities:
  drop: [ALL]
{{- end -}}

{{/* Flags of tritonserver that both servers have. Takes a dict of root and server. */}}
{{- define "canopy.serverFlags" -}}
{{- $root := .root -}}
- --model-control-mode=explicit
- --disable-auto-complete-config
- --strict-readiness=true
- --exit-on-error=true
- --exit-timeout-secs={{ .server.exitTimeoutSeconds }}
- --http-port=8000
- --grpc-port=8001
- --metrics-port=8002
- --metrics-config=summary_latencies=true
- --grpc-max-connection-age={{ mul .server.connectionAgeSeconds 1000 }}
- --backend-config=python,stub-timeout-seconds=240
- --log-format=ISO8601
{{- if $root.Values.security.restricted.enabled }}
- --grpc-restricted-protocol=shared-memory,model-config,model-repository,statistics,trace,logging:canopy-admin=$(CANOPY_ADMIN_KEY)
# Plain HTTP is for the kubelet's health checks alone.
- --http-restricted-api=inference,shared-memory,model-config,model-repository,statistics,trace,logging:canopy-admin=$(CANOPY_ADMIN_KEY)
{{- end }}
{{- if $root.Values.security.tls.enabled }}
- --grpc-use-ssl=true
- --grpc-server-cert=/etc/canopy/tls/tls.crt
- --grpc-server-key=/etc/canopy/tls/tls.key
{{- if $root.Values.security.tls.mutual }}
- --grpc-use-ssl-mutual=true
- --grpc-root-cert=/etc/canopy/tls/ca.crt
{{- end }}
{{- end }}
{{- if $root.Values.tracing.enabled }}
- --trace-config=mode=opentelemetry
- --trace-config=opentelemetry,url={{ $root.Values.tracing.url }}
- --trace-config=opentelemetry,resource=service.name=canopy-{{ .component }}
{{- /* Triton takes one in so many; 0 for those alone that bring a trace. */}}
- --trace-config=rate={{ if gt (float64 $root.Values.tracing.rate) 0.0 }}{{ max 1 (int (round (divf 1 $root.Values.tracing.rate) 0)) }}{{ else }}0{{ end }}
- --trace-config=level=TIMESTAMPS
{{- end }}
{{- range .server.extraArguments }}
- {{ . | quote }}
{{- end }}
{{- end -}}

{{/* Environment of both servers; the probe reads it too. Takes a dict of root and server. */}}
{{- define "canopy.serverEnvironment" -}}
- { name: HOME, value: /tmp }
- { name: PYTHONDONTWRITEBYTECODE, value: "1" }
- { name: HF_HUB_OFFLINE, value: "1" }
- { name: TRANSFORMERS_OFFLINE, value: "1" }
- { name: CANOPY_URL, value: "localhost:8001" }
- { name: CANOPY_CRITIC_URL, value: "localhost:8001" }
- { name: CANOPY_LOG_FORMAT, value: {{ .root.Values.logging.format | quote }} }
- { name: CANOPY_LOG_LEVEL, value: {{ .root.Values.logging.level | quote }} }
- { name: CANOPY_PROBE_TIMEOUT_S, value: {{ .server.probes.inferenceSeconds | quote }} }
{{- if .root.Values.security.tls.enabled }}
- { name: CANOPY_TLS, value: "true" }
- { name: CANOPY_TLS_ROOTS, value: /etc/canopy/tls/ca.crt }
{{- if .root.Values.security.tls.mutual }}
- { name: CANOPY_TLS_KEY, value: /etc/canopy/tls/tls.key }
- { name: CANOPY_TLS_CERTIFICATE, value: /etc/canopy/tls/tls.crt }
{{- end }}
{{- end }}
{{- if .root.Values.security.restricted.enabled }}
- name: CANOPY_ADMIN_KEY
  valueFrom:
    secretKeyRef: { name: {{ include "canopy.adminSecret" .root }}, key: key }
{{- end }}
{{- with .server.extraEnvironment }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* The three probes, and the drain. Takes a dict of server and arguments, the probe's own. */}}
{{- define "canopy.lifecycle" -}}
{{- $probes := .server.probes -}}
{{- $command := concat (list "/opt/canopy/probe/bin/python" "-m" "canopy_client.cli.probe") .arguments -}}
startupProbe:
  exec:
    command: {{ toJson $command }}
  {{- toYaml $probes.startup | nindent 2 }}
readinessProbe:
  exec:
    command: {{ ternary (append $command "--busy-passes") $command $probes.busyIsReady | toJson }}
  {{- toYaml $probes.readiness | nindent 2 }}
livenessProbe:
  exec:
    command: {{ toJson (append $command "--busy-passes") }}
  {{- toYaml $probes.liveness | nindent 2 }}
lifecycle:
  preStop:
    exec:
      # Triton refuses the steps of requests in flight as soon as it is told to stop. So it goes on serving until
      # connections have moved away (their age, with its tenth of jitter) and the slowest request has ended.
      command: [sleep, {{ include "canopy.drainSeconds" . | quote }}]
{{- end -}}

{{- define "canopy.drainSeconds" -}}
{{- add 10 (ceil (mulf .server.connectionAgeSeconds 1.1)) .server.slowestRequestSeconds -}}
{{- end -}}

{{- define "canopy.graceSeconds" -}}
{{- add 10 (include "canopy.drainSeconds" . | int) .server.exitTimeoutSeconds -}}
{{- end -}}

{{/* Where pods go. Takes a dict of root, component and server. */}}
{{- define "canopy.placement" -}}
topologySpreadConstraints:
  {{- range list "topology.kubernetes.io/zone" "kubernetes.io/hostname" }}
  - maxSkew: 1
    topologyKey: {{ . }}
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {{- include "canopy.selector" $ | nindent 8 }}
  {{- end }}
{{- with .server.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .server.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .server.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .server.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- end -}}

{{/* Puts the sizes of a server that sees pixels where the templates look for sizes. Takes a copy of the server. */}}
{{- define "canopy.sizePixels" -}}
{{- if .pixels.enabled -}}
{{- $_ := set . "sharedMemory" .pixels.sharedMemory -}}
{{- $_ := set .plan "sizeLimit" .pixels.planSizeLimit -}}
{{- $_ := set .resources "requests" (merge (dict "memory" .pixels.memory) (default dict .resources.requests)) -}}
{{- $_ := set .resources "limits" (merge (dict "memory" .pixels.memory) (default dict .resources.limits)) -}}
{{- end -}}
{{- end -}}

{{/* Resources of a server, with its GPU. Takes the server. */}}
{{- define "canopy.resources" -}}
{{- $resources := deepCopy .resources -}}
{{- if .gpu.enabled -}}
{{- $_ := set $resources "limits" (merge (dict .gpu.resource .gpu.count) (default dict $resources.limits)) -}}
{{- end -}}
{{- toYaml $resources -}}
{{- end -}}

{{/* Volumes and mounts that both servers have. */}}
{{- define "canopy.mounts" -}}
- { name: shm, mountPath: /dev/shm }
- { name: tmp, mountPath: /tmp }
{{- if .root.Values.security.tls.enabled }}
- { name: tls, mountPath: /etc/canopy/tls, readOnly: true }
{{- end }}
{{- end -}}

{{- define "canopy.volumes" -}}
- name: shm
  emptyDir: { medium: Memory, sizeLimit: {{ .server.sharedMemory }} }
- name: tmp
  emptyDir: { sizeLimit: {{ .server.temporary }} }
{{- if .root.Values.security.tls.enabled }}
- name: tls
  secret: { secretName: {{ .root.Values.security.tls.existingSecret }}, defaultMode: 288 } # 0440
{{- end }}
{{- end -}}
