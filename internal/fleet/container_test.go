package fleet

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestContainer(t *testing.T) {
	number := strings.Repeat("0123456789abcdef", 4)
	pod := "1a2b3c4d-0000-1111-2222-333344445555"
	for text, want := range map[string]Cgroup{
		"0::/\n":                                                       {},
		"0::/user.slice/user-0.slice\n":                                {},
		"0::/docker/" + number + "\n":                                  {Container: number},
		"12:cpu:/docker/" + number + "/sub\n":                          {Container: number},
		"0::/system.slice/docker-" + number + ".scope\n":               {Container: number},
		"0::/machine.slice/libpod-" + number + ".scope/container\n":    {Container: number},
		"4:memory:/kubepods/burstable/pod" + pod + "/" + number + "\n": {Container: number, Pod: pod},
		"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + strings.ReplaceAll(pod, "-", "_") +
			".slice/cri-containerd-" + number + ".scope\n": {Container: number, Pod: pod},
		"0::/system.slice/containerd.service/kubepods-pod" + pod + ".slice:cri-containerd:" + number +
			"\n": {number, pod},
		"0::/docker/" + number + "ff\n":               {},
		"0::/x/pod1a2b3c4d/docker-" + number + "-x\n": {},
		"nothing": {},
	} {
		require.Equal(t, want, parseMembership([]byte(text)), text)
	}
	require.Equal(t, Cgroup{}, cgroupOf(0))
	require.Equal(t, "1a2b3c4d", Cgroup{number, pod}.Short())
	require.Equal(t, "01234567", Cgroup{Container: number}.Short())
}
