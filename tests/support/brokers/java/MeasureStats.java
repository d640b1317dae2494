import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.common.metrics.MeasurableStat;
import org.apache.kafka.common.metrics.MetricConfig;
import org.apache.kafka.common.metrics.stats.Avg;
import org.apache.kafka.common.metrics.stats.CumulativeCount;
import org.apache.kafka.common.metrics.stats.CumulativeSum;
import org.apache.kafka.common.metrics.stats.Max;
import org.apache.kafka.common.metrics.stats.Rate;
import org.apache.kafka.common.metrics.stats.WindowedCount;
import org.apache.kafka.common.metrics.stats.WindowedSum;

/**
 * Prints what Kafka's statistics say. A line is "samples window_ms now_ms time_ms:value ..." and
 * gives "average maximum rate count_rate ratio total count", measured once, at now.
 */
public class MeasureStats {
    public static void main(String[] arguments) throws Exception {
        for (String line : Files.readAllLines(Path.of(arguments[0]))) {
            String[] words = line.split(" ");
            MetricConfig config = new MetricConfig().samples(Integer.parseInt(words[0]))
                .timeWindow(Long.parseLong(words[1]), TimeUnit.MILLISECONDS);
            List<MeasurableStat> stats = List.of(new Avg(), new Max(), new Rate(new WindowedSum()),
                new Rate(new WindowedCount()), new Rate(TimeUnit.NANOSECONDS, new WindowedSum()),
                new CumulativeSum(), new CumulativeCount());
            for (int i = 3; i < words.length; i++) {
                String[] record = words[i].split(":");
                for (MeasurableStat stat : stats)
                    stat.record(config, Double.parseDouble(record[1]), Long.parseLong(record[0]));
            }
            StringBuilder out = new StringBuilder();
            for (MeasurableStat stat : stats)
                out.append(stat.measure(config, Long.parseLong(words[2]))).append(' ');
            System.out.println(out.toString().trim());
        }
    }
}
