# Report the progress of a shell program.
#
# xpk workload create shell --script-dir examples --command 'bash progress.sh'
for step in $(seq 1 20); do
  sleep 0.1
  echo "{\"step\": $step, \"steps\": 20, \"loss\": 0.$((50 - step)), \"time\": $(date +%s.%N)}" >> "${XPK_PROGRESS_FILE:-/dev/null}"
done
