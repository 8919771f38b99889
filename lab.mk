# The virtual-machine lab (tests/vm): its image and its tests. Included by the Makefile.

.PHONY: lab test-vm vm-scenarios vm-power-cut lab-clean

lab:  ## build the lab's machine when stale (needs root; installs qemu and debootstrap when missing)
	tests/vm/build_image.sh

test-vm: lab  ## the scenarios that need systemd, cgroup v2 and sessions
	$(MAKE) -j2 vm-scenarios vm-power-cut

vm-scenarios:
	@mkdir -p build/results
	.venv/bin/pytest tests/vm -m "vm and not long" -k "not power_cut" --junitxml=build/results/vm.xml

vm-power-cut:  ## a machine of its own, booted three times
	@mkdir -p build/results
	.venv/bin/pytest tests/vm -m "vm and not long" -k power_cut --junitxml=build/results/vm-power-cut.xml

lab-clean:  ## the image, the downloaded packages, everything
	rm -rf .lab
