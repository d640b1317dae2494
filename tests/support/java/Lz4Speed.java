import java.lang.management.ManagementFactory;
import java.nio.file.Files;
import java.nio.file.Path;
import net.jpountz.lz4.LZ4Compressor;
import net.jpountz.lz4.LZ4Factory;

/** The least CPU nanoseconds that a file takes by blocks of 64 KiB, as Kafka's producer has them. */
public class Lz4Speed {
    private static final int BLOCK = 64 * 1024;

    public static void main(String[] arguments) throws Exception {
        byte[] data = Files.readAllBytes(Path.of(arguments[0]));
        LZ4Compressor compressor = LZ4Factory.fastestInstance().fastCompressor();
        byte[] out = new byte[compressor.maxCompressedLength(BLOCK)];
        var thread = ManagementFactory.getThreadMXBean();
        long least = Long.MAX_VALUE, packed = 0;
        for (int round = 0; round < 300; round++) {
            long before = thread.getCurrentThreadCpuTime();
            packed = 0;
            for (int at = 0; at < data.length; at += BLOCK) {
                packed += compressor.compress(data, at, Math.min(BLOCK, data.length - at), out, 0, out.length);
            }
            least = Math.min(least, thread.getCurrentThreadCpuTime() - before);
        }
        System.out.println(least + " " + packed);
    }
}
